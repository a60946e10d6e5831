"""Predictions of what a study reads beyond the usual: chosen DICOM files, and formats of plug-ins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from semisilo.common.data.form import Selection
from semisilo.common.data.formats import registry
from semisilo.common.data.formats.plugins import use_formats
from semisilo.common.errors import BadData, UsageError
from semisilo.prediction.options import selection_of
from semisilo.prediction.predictor import predict
from tests.plugin_kit import on_the_module_path
from tests.semisilo.prediction.test_predict_deep import FACTS, Seen

MODULE = '''
import numpy as np
from semisilo.common.data.formats.plugins import opened_array
from semisilo.common.data.formats.registry import ImageFormat

DOT = ImageFormat(name="dot", suffixes=(".dot",), open=lambda path: opened_array(
    np.full((8, 8), path.read_bytes()[0], dtype=np.uint8)))
'''


def shown(source: Any, selection: Selection) -> tuple[list[int], list[str]]:
    model = Seen(FACTS)
    found = predict(model, source, selection=selection)
    return model.values, [each.name for each in found.skipped]


def test_files_of_a_plug_in_that_is_named_are_predicted(tmp_path: Path) -> None:
    facts = tmp_path / "site" / "dots_of_tests-1.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: dots-of-tests\nVersion: 1\n")
    (facts / "entry_points.txt").write_text("[semisilo.formats]\ndot = dots_of_tests:DOT\n")
    (tmp_path / "site" / "dots_of_tests.py").write_text(MODULE)
    (tmp_path / "scans").mkdir()
    (tmp_path / "scans" / "a.dot").write_bytes(bytes([77]))
    try:
        with on_the_module_path(tmp_path / "site"):
            assert shown(tmp_path / "scans", selection_of(["dot"], [])) == ([77], [])
            with pytest.raises(BadData, match="none is an image"):
                shown(tmp_path / "scans", Selection())
    finally:
        use_formats(())
    assert registry.others == ()


def test_dicom_files_are_chosen_by_their_tags(tmp_path: Path) -> None:
    pytest.importorskip("pydicom")
    from tests.common.data.formats.test_dicom import made

    for name, value, view in (("a", 50, "PA"), ("b", 90, "LL"), ("c", 120, "AP")):
        made(tmp_path / f"{name}.dcm", np.full((8, 8), value, dtype=np.uint8), ViewPosition=view)
    assert shown(tmp_path, selection_of([], ["ViewPosition=PA,AP"])) == ([50, 120], ["b.dcm"])
    assert shown(tmp_path, selection_of([], ["ViewPosition=LL", "ViewPosition=PA"])) == ([50, 90], ["c.dcm"])


@pytest.mark.parametrize(("text", "says"), [("Modality", "--dicom Modality: has no value"),
                                            ("modality=CR", "--dicom: 'modality' is not a keyword of a DICOM tag")])
def test_what_is_no_tag_with_values_is_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        selection_of([], [text])
    assert selection_of([], ["BurnedInAnnotation=NO,"]).dicom == {"BurnedInAnnotation": ("NO", "")}
