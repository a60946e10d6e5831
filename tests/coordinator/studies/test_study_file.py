"""Study files: every wrong key, type and value is one line that names file, table, key and remedy."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

from semisilo.common.config import from_dict, to_dict
from semisilo.common.errors import BadConfiguration, UnknownName, UsageError
from semisilo.common.methods import METHODS, Scenario
from semisilo.common.methods.meaning import Meaning
from semisilo.coordinator.federation.folder import study_template
from semisilo.coordinator.studies.study_file import (
    ParticipationSettings,
    StudyConfig,
    check_participation,
    config_from_dict,
    load_study,
)
from tests.each_of import each_of

DATA = '[data]\nlabelled = "data"\nimage = { size = 8, channels = 1 }\n'
METHOD = '[method]\nname = "semifl"\n'


def load(folder: Path, text: str) -> StudyConfig:
    path = folder / "study.toml"
    path.write_text(text)
    return load_study(path)


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(UsageError) as caught:
        load(folder, text)
    line = caught.value.line()
    assert "\n" not in line
    assert line.startswith(f"{folder / 'study.toml'}: ")
    assert caught.value.exit_status == 2
    return line.removeprefix(f"{folder / 'study.toml'}: ")


def test_a_minimal_file_has_the_documented_defaults(tmp_path: Path) -> None:
    config = load(tmp_path, DATA + METHOD)
    assert (config.study.rounds, config.study.seed, config.study.start_with) == (100, 1, 1)
    assert (config.model.name, config.data.image.mean, config.data.classes) == ("small_cnn", "labelled", ())
    assert (config.participation.timeout_seconds, config.participation.limit_seconds) == (1800.0, 172800.0)
    assert (config.method.name, config.method.settings.confidence_threshold) == ("semifl", 0.95)


def test_the_templates_of_a_new_study_are_valid_files(tmp_path: Path) -> None:
    assert load(tmp_path, study_template()).data.labelled == "data/labelled"
    at_silo = load(tmp_path, study_template("labels-at-silo"))
    assert (at_silo.method.settings.scenario, at_silo.data.labelled) == ("labels-at-silo", "")
    assert at_silo.data.classes == ("basophil", "eosinophil")
    at_both = load(tmp_path, study_template("labels-at-both"))
    assert (at_both.method.settings.scenario, at_both.data.labelled) == ("labels-at-both", "data/labelled")
    assert (at_both.method.settings.coordinator_steps, at_both.method.settings.labelled_steps) == (40, 40)
    assert {load(tmp_path, study_template(each)).data.image.standardise for each in get_args(Scenario)} == {"image"}


def test_a_setting_that_the_strategy_writes_is_refused_in_a_file(tmp_path: Path) -> None:
    line = refusal(tmp_path, DATA + METHOD + "round_lr = 0.1\n")
    assert line == "[method]: 'round_lr' is set by the method itself in every task. Remove that line."


@pytest.mark.parametrize(("privacy", "asked", "fewest"), [
    ("", 2, 3), ("min_silos = 5\n", 4, 5), ("threshold = 6\n", 5, 6)])
def test_a_round_that_asks_fewer_silos_than_a_sum_takes_is_refused(
        tmp_path: Path, privacy: str, asked: int, fewest: int) -> None:
    text = DATA + METHOD + f"[privacy]\nsecure_aggregation = true\n{privacy}[participation]\nsilos_per_round = "
    assert refusal(tmp_path, f"{text}{asked}") == (
        f"[privacy]: secure_aggregation with these settings takes {fewest} silos (min_silos, threshold), and a round"
        f" asks {asked}. Ask more: [participation] silos_per_round.")
    assert load(tmp_path, f"{text}{fewest}").participation.silos_per_round == fewest
    assert load(tmp_path, f'{text}"10%"').privacy.fewest_silos == fewest, "more silos may join"


def test_a_study_that_hides_whole_silos_needs_the_package_that_counts_it(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Report and model card say what it has spent: a coordinator that cannot count could make neither."""
    text = (DATA + '[method]\nname = "fedavg"\nobjective = "fixmatch"\nscenario = "labels-at-coordinator"\n'
            'weighting = "uniform"\n'
            '[study]\nstart_with = 10\n[model]\nnormalisation = "group"\n'
            '[privacy.dp]\nnoise_multiplier = 1.0\n')
    whole = text + 'unit = "silo"\n'
    assert load(tmp_path, whole).privacy.dp is not None
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    assert load(tmp_path, text).privacy.dp is not None, "silos count that"
    line = refusal(tmp_path, whole)
    assert line.startswith('[privacy.dp] unit = "silo": Differential privacy needs the package')
    assert "semisilo[privacy]" in line


def test_settings_survive_the_ledger_unchanged(tmp_path: Path) -> None:
    config = load(tmp_path, DATA.replace("channels = 1", "channels = 1, mean = [0.3], std = [0.2]")
                  + METHOD + "lr = 0.1\n[participation]\nsilos_per_round = 2\n")
    kept = json.loads(json.dumps(to_dict(config)))
    assert config_from_dict(kept, where="ledger") == config
    kept["method"]["settings"]["lr"] = 0.2
    assert config_from_dict(kept, where="ledger") != config


@pytest.mark.parametrize(("text", "line"), [
    (DATA + METHOD + "[study]\nronds = 3", "[study]: unknown key 'ronds'. Did you mean 'rounds'?"),
    (DATA + METHOD + "[participaton]\n", "unknown key 'participaton'. Did you mean 'participation'?"),
    (DATA + METHOD + "confidence_treshold = 0.9",
     "[method]: unknown key 'confidence_treshold'. Did you mean 'confidence_threshold'?"),
    (DATA + METHOD + "[wire]\nuplnk = 'raw'", "[wire]: unknown key 'uplnk'. Did you mean 'uplink'?"),
    (DATA + METHOD + "[model]\nnam = 'x'", "[model]: unknown key 'nam'. Did you mean 'name'?"),
    (DATA + METHOD + "[numerics]\nthread = 2", "[numerics]: unknown key 'thread'. Did you mean 'threads'?"),
    (DATA + METHOD + "[augmentation]\npolcy = 'small'", "[augmentation]: unknown key 'polcy'. Did you mean 'policy'?"),
    (DATA.replace("labelled", "labeled") + METHOD, "[data]: unknown key 'labeled'. Did you mean 'labelled'?"),
    (DATA.replace("size", "sise") + METHOD, "[data] image: unknown key 'sise'. Did you mean 'size'?"),
    (DATA + METHOD + "[model]\nclasses = ['a']",
     "[model]: unknown key 'classes'. Class names belong in [data] classes."),
    (DATA + METHOD + "[study]\nlocal_epochs = 3", "[study]: unknown key 'local_epochs'. It belongs in [method]."),
    (DATA + METHOD + "rounds = 3", "[method]: unknown key 'rounds'. It belongs in [study]."),
    (DATA + METHOD + "[wire]\nrounds = 3", "[wire]: unknown key 'rounds'. It belongs in [study]."),
    (DATA + METHOD + "[participation]\nsize = 8",
     "[participation]: unknown key 'size'. It belongs in [data] image."),
    ("quorum = 2\n" + DATA + METHOD, "unknown key 'quorum'. It belongs in [participation]."),
])
def test_an_unknown_key_is_named_with_the_nearest_valid_one(tmp_path: Path, text: str, line: str) -> None:
    assert refusal(tmp_path, text) == line


@each_of(("table", "assignment", "words"), [
    ("study", 'rounds = "3"', ("[study] rounds", "whole number", "'3'")),
    ("study", "rounds = 3.0", ("[study] rounds", "whole number", "3.0")),
    ("study", "seed = true", ("[study] seed", "whole number", "true")),
    ("study", 'labelled_only_baseline = "yes"', ("[study] labelled_only_baseline", "true or false")),
    ("model", "name = 3", ("[model] name", "text in quotes")),
    ("model", 'normalisation = "batch"', ("[model] normalisation", "static_batch")),
    ("participation", "round_timeout = 30", ("[participation] round_timeout", "text in quotes")),
    ("participation", "silos_per_round = true", ("[participation] silos_per_round", "true")),
    ("augmentation", 'without = "Invert"', ("[augmentation]", "without", "list")),
    ("augmentation", 'policy = "smal"', ("[augmentation] policy", "'small'")),
    ("wire", 'uplink = "bitmask"', ("[wire]", 'uplink = "bitmask"', '"raw"')),
    ("wire", 'uplink = "top-k 0%"', ("[wire]", 'uplink = "top-k 0%"', "share")),
    ("wire", 'downlink = "int8"', ("[wire] downlink", "smallest")),
    ("wire", 'rounding = "up"', ("[wire] rounding", "stochastic")),
    ("wire", "error_feedback = 1", ("[wire] error_feedback", "true or false")),
    ("numerics", "deterministic = 1", ("[numerics] deterministic", "true or false")),
])
def test_a_wrong_type_is_named_with_its_place(tmp_path: Path, table: str, assignment: str,
                                              words: tuple[str, ...]) -> None:
    line = refusal(tmp_path, f"{DATA}{METHOD}[{table}]\n{assignment}\n")
    assert all(word in line for word in words), line


@each_of(("table", "assignment", "words"), [
    ("study", "rounds = 0", ("[study]", "rounds = 0", "at least 1")),
    ("study", f"rounds = {2**70}", ("[study]", f"rounds = {2**70}", "at most 1000000")),
    ("study", "start_with = 0", ("[study]", "start_with = 0")),
    ("study", "baseline_epochs = -1", ("[study]", "baseline_epochs = -1")),
    ("study", 'baseline_budget = "0s"', ("[study]", "baseline_budget", "above 0")),
    ("study", 'baseline_budget = "soon"', ("[study]", "baseline_budget", "'soon'", '"5m"')),
    ("study", "baseline_patience = -1", ("[study]", "baseline_patience = -1")),
    ("study", 'baseline_recipe = "paper"\nbaseline_patience = 20', ("[study]", "= 20", "[data] validation")),
    ("study", "baseline_patience = 20", ("[study]", "baseline_patience = 20", 'baseline_recipe = "paper"')),
    ("study", 'baseline_recipe = "weak"', ("[study]", "baseline_recipe", "strong")),
    ("study", "keep_every = 0", ("[study]", "keep_every = 0")),
    ("study", f"seed = {2**63}", ("[study]", "seed", "64 bits")),
    ("model", 'name = ""', ("[model]", "name is empty")),
    ("participation", "quorum = -1", ("[participation]", "quorum = -1")),
    ("participation", "silos_per_round = 0", ("[participation]", "silos_per_round = 0")),
    ("participation", 'silos_per_round = "0%"', ("[participation]", '"0%"', '"10%"')),
    ("participation", 'silos_per_round = "101%"', ("[participation]", '"101%"')),
    ("participation", 'silos_per_round = "half"', ("[participation]", '"half"')),
    ("participation", 'round_timeout = "5 min"', ("[participation]", "round_timeout", "'5 min'", '"5m"')),
    ("participation", 'round_timeout = "3000000d"', ("[participation]", "round_timeout", 'at most "365d"')),
    ("participation", f'round_limit = "{"9" * 400}d"', ("[participation]", "round_limit", 'at most "365d"')),
    ("participation", 'round_limit = "0s"', ("[participation]", "round_limit", "above 0")),
    ("numerics", "threads = -1", ("[numerics]", "threads = -1", "between 1 and")),
    ("numerics", 'precision = "fp8"', ("[numerics]", "precision", "fp8")),
])
def test_a_value_out_of_range_is_named_with_the_range(tmp_path: Path, table: str, assignment: str,
                                                      words: tuple[str, ...]) -> None:
    line = refusal(tmp_path, f"{DATA}{METHOD}[{table}]\n{assignment}\n")
    assert all(word in line for word in words), line


@pytest.mark.parametrize(("before", "after", "words"), [
    ("size = 8", "size = 0", ("size = 0", "4096")),
    ("size = 8", "size = 4097", ("size = 4097", "4096")),
    ("channels = 1", "channels = 2", ("channels", "1, 3")),
    ("channels = 1", "channels = 3, mean = [0.1]", ("mean", "3 numbers")),
    ("channels = 1", 'channels = 1, std = "measured"', ("std", '"labelled"', '"validation"')),
    ("channels = 1", 'channels = 1, std = "validation"', ("std", "measured on 'validation'", "no such images")),
    ("channels = 1", "channels = 1, std = [0.0]", ("std", "above 0")),
    ("channels = 1", "channels = 1, mean = [nan]", ("mean", "finite")),
    ('labelled = "data"', 'labelled = ""', ("semifl", "labelled images", 'labelled = "folder"')),
    ('labelled = "data"', 'labelled = "data"\nclasses = ["a", "a"]', ("classes", "'a' twice")),
    ('labelled = "data"', 'labelled = "data"\nclasses = ["a"]', ("classes", "two names")),
    ('labelled = "data"', 'labelled = "data"\non_error = "ignore"', ("on_error", "stop, skip")),
])
def test_what_is_said_of_the_images_must_fit_together(tmp_path: Path, before: str, after: str,
                                                      words: tuple[str, ...]) -> None:
    assert before in DATA
    line = refusal(tmp_path, DATA.replace(before, after) + METHOD)
    assert line.startswith("[data")
    assert all(word in line for word in words), line


AT_SILO = """
[data]
classes = ["cat", "dog"]
image = { size = 8, channels = 1, mean = [0.5], std = [0.25] }
[method]
name = "fedavg"
scenario = "labels-at-silo"
"""


def test_with_labels_at_silos_the_coordinator_needs_neither_labels_nor_other_images(tmp_path: Path) -> None:
    config = load(tmp_path, AT_SILO)
    assert (config.data.labelled, config.data.validation, config.data.test) == ("", "", "")
    assert config_from_dict(json.loads(json.dumps(to_dict(config))), where="ledger") == config
    measured = AT_SILO.replace("mean = [0.5]", 'mean = "validation"').replace(
        "classes", 'validation = "there"\nclasses')
    assert load(tmp_path, measured).data.image.mean == "validation"


@pytest.mark.parametrize(("before", "after", "words"), [
    ('classes = ["cat", "dog"]', "", ("[data]: 'classes' is missing", "the labels are at the silos", "classes = [")),
    ('"dog"]', '"labelled"]', ("[data]: no class may be called 'labelled'",)),
    ('"dog"]', '"unlabelled"]', ("[data]: no class may be called 'unlabelled'",)),
    ("[data]", '[data]\nlabelled = "x"', (
        "[data]: labelled would not be used", "fedavg learns from the labels of silos", "Remove that line",
        'Or set [method] scenario = "labels-at-coordinator"')),
    (", mean = [0.5]", "", ("[data.image]: mean is to be measured on 'labelled'", "no such images", "mean = [0.5]",
                           '"validation"')),
    ("std = [0.25]", 'std = "labelled"', ("[data.image]: std is to be measured on 'labelled'",)),
    ("std = [0.25]", 'std = "validation"', ("[data.image]: std is to be measured on 'validation'",)),
    ('scenario = "labels-at-silo"', 'scenario = "labels-at-coordinator"\nobjective = "fixmatch"', (
        "[data]: 'labelled' is missing", "labels-at-coordinator fedavg needs labelled images", 'labelled = "folder"',
        'Or set [method] scenario = "labels-at-silo"')),
])
def test_what_does_not_fit_the_place_of_the_labels_is_named_with_its_remedy(
        tmp_path: Path, before: str, after: str, words: tuple[str, ...]) -> None:
    assert before in AT_SILO
    line = refusal(tmp_path, AT_SILO.replace(before, after))
    assert all(word in line for word in words), line


AT_BOTH = DATA + '[method]\nname = "self_training"\nscenario = "labels-at-both"\n'


def test_with_labels_at_both_the_coordinators_labels_bring_what_is_not_written_down(tmp_path: Path) -> None:
    config = load(tmp_path, AT_BOTH)
    assert (config.data.image.mean, config.data.classes, config.data.may_validate) == ("labelled", (), True)
    without = refusal(tmp_path, AT_BOTH.replace('labelled = "data"\n', 'classes = ["cat", "dog"]\n'))
    assert without.startswith("[data]: 'labelled' is missing: in the scenario labels-at-both self_training needs")
    assert without.endswith('Or set [method] scenario = "labels-at-silo".')
    named = refusal(tmp_path, AT_BOTH.replace("[data]", '[data]\nclasses = ["cat", "labelled"]'))
    assert "no class may be called 'labelled'" in named
    useless = refusal(tmp_path, AT_SILO.replace("fedavg", "self_training").replace("[data]", '[data]\nlabelled = "x"'))
    assert useless.endswith('Or set [method] scenario = "labels-at-coordinator" or "labels-at-both".')


@pytest.mark.parametrize("method", sorted(METHODS.keys() - {"self_training"}))
def test_a_method_that_does_not_know_labels_at_both_refuses_them_by_name(tmp_path: Path, method: str) -> None:
    line = refusal(tmp_path, AT_BOTH.replace("self_training", method))
    assert line == (f"[method]: {method} is not defined for the scenario 'labels-at-both'. It is for "
                    f"{' and '.join(METHODS[method].scenarios)}.")
    with pytest.raises(BadConfiguration, match="labels-at-both"):  # as a task's settings are read at a silo
        from_dict(METHODS[method].settings, {"scenario": "labels-at-both"})


@each_of(("text", "words"), [
    (DATA, ("[method]", "missing", 'name = "semifl"')),
    (DATA + METHOD.replace("[method]", "[methods]"), ("unknown key 'methods'", "Did you mean 'method'?")),
    (DATA + '[method]\nname = "selftraining"\n', ("no method 'selftraining'", "Did you mean 'self_training'?")),
    (DATA + '[method]\nname = "SemiFL"\n', ("There is no method 'SemiFL'", "Did you mean 'semifl'?")),
    (DATA + '[method]\nname = "x"\n', ("There is no method 'x'. Methods: fed_shvr",)),
    (METHOD, ("[data]", "missing")),
    ('[data]\nlabelled = "x"\n' + METHOD, ("[data]", "'image' is missing")),
    (DATA + '[method]\nname = "semi_fl"\n', ("[method]", "'semi_fl'", "semifl")),
    (DATA + METHOD + "lr = -1", ("[method]", "lr = -1")),
    (DATA + METHOD + "lr = nan", ("[method]", "lr = nan")),
    (DATA + METHOD + "momentum = 1", ("[method]", "momentum = 1")),
    (DATA + METHOD + 'scenario = "labels-at-silo"',
     ("[method]", "semifl is not defined for the scenario 'labels-at-silo'", "It is for labels-at-coordinator.")),
    (DATA + '[method]\nname = "fed_shvr"\nscenario = "labels-at-coordinator"',
     ("[method]", "fed_shvr is not defined for the scenario 'labels-at-coordinator'", "It is for labels-at-silo.")),
    (DATA + '[method]\nname = "fedavg"\nscenario = "labels"',
     ("[method]", "fedavg is not defined for the scenario 'labels'",
      "It is for labels-at-coordinator and labels-at-silo.")),
    (DATA + '[method]\nname = "fedavg"\nscenario = 3', ("[method]", "scenario", "3", "not one of the choices")),
    ("method = 3\n" + DATA, ("[method]", "missing")),
    ("study = 3\n" + DATA + METHOD, ("[study]", "expected a table", "3")),
    (DATA + METHOD + "[study]\nrounds =\nseed = 1", ("not valid TOML", "line 7")),
    (DATA + METHOD + DATA, ("not valid TOML", "line")),
])
def test_missing_tables_and_wrong_methods_are_named(tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    line = refusal(tmp_path, text)
    assert all(word in line for word in words), line


def test_an_unknown_method_is_an_unknown_name_and_a_wrong_value_a_bad_configuration(tmp_path: Path) -> None:
    with pytest.raises(UnknownName):
        load(tmp_path, DATA + '[method]\nname = "x"\n')
    with pytest.raises(BadConfiguration):
        load(tmp_path, DATA + METHOD + "lr = -1")


def test_a_file_that_is_not_text_or_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadConfiguration, match=r"study\.toml: cannot be read"):
        load_study(tmp_path / "study.toml")
    with pytest.raises(BadConfiguration, match="no such file"):
        load_study(tmp_path / "nowhere.toml")


def test_every_table_of_the_file_is_a_field_of_the_study(tmp_path: Path) -> None:
    """The list of tables that misspellings are compared with must not fall behind the dataclass."""
    for field in dataclasses.fields(StudyConfig):
        line = refusal(tmp_path, f"{field.name}x = 1\n" + DATA + METHOD)
        assert line == f"unknown key '{field.name}x'. Did you mean '{field.name}'?"


@each_of(("share", "joined", "asked"), [
    ("100%", 7, 7), ("10%", 9, 1), ("10%", 20, 2), ("50%", 5, 2), ("0.1%", 3, 1), ("29%", 100, 29), (3, 2, 2),
    (3, 9, 3),
])
def test_a_share_of_the_silos_is_rounded_down_but_never_to_nobody(share: int | str, joined: int, asked: int) -> None:
    """floor(29 % of 100) is 29, although 0.29 * 100 = 28.999999999999996 in floating point."""
    assert ParticipationSettings(silos_per_round=share).sample_size(joined) == asked


@each_of(("participation", "words"), [
    ({"quorum": 5, "silos_per_round": 3}, "quorum = 5: a round asks 3 silos"),
    ({"quorum": 2, "silos_per_round": 1}, "quorum = 2: a round asks 1 silo"),
    ({"round_limit": "10m"}, 'round_limit = "10m" is shorter than round_timeout = "30m"'),
    ({"round_limit": "10m", "round_timeout": "11m"}, 'is shorter than round_timeout = "11m"'),
    ({"quorum": 5}, ""), ({"quorum": 3, "silos_per_round": 3}, ""), ({"quorum": 5, "silos_per_round": "10%"}, ""),
    ({"round_timeout": "3d"}, ""), ({"round_limit": "10m", "round_timeout": "10m"}, "")])
def test_a_new_study_whose_rounds_could_not_do_what_it_says_is_refused(participation: dict[str, Any],
                                                                       words: str) -> None:
    """The quorum was lowered and the limit raised without a word."""
    config = study_of(participation)
    if not words:
        check_participation(config, "x.toml")
        return
    with pytest.raises(BadConfiguration, match=re.escape(words)) as caught:
        check_participation(config, "x.toml")
    assert caught.value.text.startswith("x.toml: [participation]: ")
    assert caught.value.remedy


def test_where_no_silo_can_join_a_quorum_must_be_reached_by_those_there_are() -> None:
    check_participation(study_of({"quorum": 4}), "x.toml", silos=4)
    check_participation(study_of({"round_limit": "10m"}), "x.toml", silos=4)  # no deadline is waited for
    with pytest.raises(BadConfiguration, match="quorum = 4: a round asks 3 silos"):
        check_participation(study_of({"quorum": 4}), "x.toml", silos=3)
    with pytest.raises(BadConfiguration, match="quorum = 4: a round asks 2 silos"):
        check_participation(study_of({"quorum": 4, "silos_per_round": "50%"}), "x.toml", silos=4)


def study_of(participation: dict[str, Any]) -> StudyConfig:
    return config_from_dict({
        "data": {"labelled": "digits", "image": {"size": 8, "channels": 1}}, "method": {"name": "semifl"},
        "participation": participation}, where="test")


@each_of(("quorum", "asked", "aside", "needed"), [
    (0, 1, 0, 1), (0, 5, 0, 3), (0, 0, 0, 1), (0, 5, 2, 3), (2, 5, 0, 2), (5, 2, 0, 5), (5, 0, 0, 5),
    (3, 2, 1, 2), (5, 3, 1, 4), (3, 4, 1, 3), (1, 0, 3, 1)])
def test_no_round_is_opened_that_asks_fewer_than_the_quorum_but_for_silos_that_are_set_aside(
        quorum: int, asked: int, aside: int, needed: int) -> None:
    assert ParticipationSettings(quorum=quorum).fewest_asked(asked, num_aside=aside) == needed


@each_of(("silos_per_round", "quorum", "members", "aside", "needed"), [
    (5, 8, 10, 0, 5), (5, 8, 5, 0, 5), (5, 8, 3, 0, 5), (5, 8, 4, 1, 4), (5, 8, 100, 0, 5), (5, 3, 2, 0, 3),
    ("20%", 5, 10, 0, 2), ("20%", 5, 3, 0, 1), ("20%", 5, 25, 0, 5), ("20%", 5, 100, 0, 5), ("20%", 5, 10, 1, 2),
    ("50%", 3, 5, 0, 2), ("100%", 8, 5, 0, 8), ("100.0 %", 8, 5, 0, 8), ("100%", 8, 5, 3, 5)])
def test_a_quorum_above_what_a_round_ever_asks_keeps_no_study_waiting(
        silos_per_round: int | str, quorum: int, members: int, aside: int, needed: int) -> None:
    """A begun study may state one, and its file cannot be changed. 20 % of 25 silos are the first five."""
    participation = ParticipationSettings(silos_per_round=silos_per_round, quorum=quorum)
    assert participation.fewest_asked(participation.sample_size(members), num_aside=aside) == needed


@each_of(("quorum", "asked", "needed"), [
    (0, 1, 1), (0, 4, 2), (0, 5, 3), (2, 5, 2), (9, 5, 5), (0, 0, 0)])
def test_the_quorum_is_half_of_those_asked_rounded_up_unless_the_study_says(quorum: int, asked: int,
                                                                            needed: int) -> None:
    assert ParticipationSettings(quorum=quorum).quorum_of(asked) == needed


def test_the_limit_of_a_round_is_never_before_its_deadline() -> None:
    assert ParticipationSettings(round_timeout="2h", round_limit="1h").limit_seconds == 7200.0


def test_a_method_that_needs_exact_updates_refuses_a_lossy_uplink(tmp_path: Path) -> None:
    data = '[data]\nclasses = ["a", "b"]\nimage = { size = 8, channels = 1, mean = [0.0], std = [1.0] }\n'
    method, lossy = '[method]\nname = "fed_shvr"\n', '[wire]\nuplink = "int8"\n'
    line = refusal(tmp_path, data + method + lossy)
    assert line.startswith('[wire]: uplink = "int8" is lossy; fed_shvr with these settings needs exact updates')
    assert 'correction_at = "coordinator"' in line
    for allowed in ('correction_at = "coordinator"\n', 'variant = "fed_sh"\n'):
        assert load(tmp_path, data + method + allowed + lossy).wire.uplink == "int8"
    assert load(tmp_path, data + method).wire.uplink == "auto"
    line = refusal(tmp_path, data + '[method]\nname = "scaffold"\n' + lossy)
    assert "scaffold with these settings needs exact updates" in line
    assert "correction_at" not in line, "a setting of fed_shvr alone"


def test_self_training_with_labels_at_silos_alone_knows_what_its_model_stands_for_or_does_not_begin() -> None:
    def tables(**method: object) -> dict[str, object]:
        return {"data": {"image": {"size": 8, "channels": 1}, "classes": ["a", "b"]},
                "method": {"name": "self_training", "scenario": "labels-at-silo", **method}}

    with pytest.raises(BadConfiguration, match=r'labels at silos alone.*Set logit_adjustment = 1, or silo_prior = "mo'):
        config_from_dict(tables(logit_adjustment=0.5), where="s")
    for method in ({}, {"logit_adjustment": 0.5, "silo_prior": "model"},
                   {"logit_adjustment": 0.5, "scenario": "labels-at-both"},
                   {"logit_adjustment": 0.0, "scenario": "labels-at-coordinator"}):
        config_from_dict(tables(**method), where="s")
    begun = to_dict(config_from_dict(tables(), where="s"))
    begun["method"]["settings"]["logit_adjustment"] = 0.5
    assert config_from_dict(begun, where="ledger").method.settings.logit_adjustment == 0.5


@each_of(("method", "key", "value", "switch"), [
    ("semifl", "mixup_a", 0.3, {"mix_weight": 0.0}),
    ("semifl", "momentum_max_age_rounds", 3, {"persist_local_momentum": False}),
    ("semifl", "momentum_max_age_rounds", 3, {"momentum": 0.0, "nesterov": False}),
    ("self_training", "mixup_a", 0.3, {"mix_weight": 0.0}),
    ("self_training", "momentum_max_age_rounds", 3, {"persist_local_momentum": False}),
    ("self_training", "labelled_views", "weak", {"coordinator_steps": 0}),
    ("self_training", "sbn_offsets", False, {"sbn_source": "coordinator"}),
    ("self_training", "sbn_offsets", False, {"scenario": "labels-at-silo"}),
    *(("fedmatch", key, value, {"num_helpers": 0}) for key, value in {
        "helpers": "similarity", "helper_interval": 3, "helper_pool": "all", "helper_max_age_rounds": 2,
        "keep_helpers": True, "tie_break": "lowest_index", "lambda_i": 0.5, "icc": "mean"}.items()),
    ("fedmatch", "icc", "sum", {"preset": "paper_v3", "lambda_i": 0.0}),
    ("fedmatch", "plateau_patience", 9, {"plateau_factor": 1.0}),
    ("fedmatch", "lambda_s", 1.0, {"coordinator_epochs": 0}),
    ("fedmix", "lambda_s", 1.0, {"coordinator_epochs": 0}),
    ("fedmix", "label_rule", "vote", {"num_views": 1}),
    ("fedrgd", "lambda_s", 2.0, {"coordinator_epochs": 0})])
def test_no_study_begins_with_a_setting_that_another_one_has_switched_off(method: str, key: str, value: object,
                                                                          switch: dict[str, Any]) -> None:
    """Either alone is right. One that an earlier version has begun goes on."""
    def tables(**settings: object) -> dict[str, object]:
        return {"data": {"image": {"size": 8, "channels": 1}, "classes": ["a", "b"]},
                "method": {"name": method, **settings}}

    with pytest.raises(BadConfiguration, match=rf"\[method\]: {key} = .*: not used with .*Leave it out"):
        config_from_dict(tables(**{**switch, key: value}), where="s")
    config_from_dict(tables(**({"preset": switch["preset"]} if "preset" in switch else {}), **{key: value}), where="s")
    begun = to_dict(config_from_dict(tables(**switch), where="s"))
    begun["method"]["settings"][key] = value
    assert getattr(config_from_dict(begun, where="ledger").method.settings, key) == value


@each_of("method", sorted(name for name, spec in METHODS.items() if Meaning.DIFFERENCE not in spec.up.values()))
def test_a_method_whose_silos_send_no_differences_refuses_a_lossy_uplink(method: str) -> None:
    assert method in ("fedmatch", "fedsgd", "local")
    tables = {"data": {"image": {"size": 8, "channels": 1}}, "method": {"name": method}}
    with pytest.raises(BadConfiguration) as error:
        config_from_dict(tables | {"wire": {"uplink": "int8"}}, where="s")
    assert error.value.text.startswith(f's: [wire]: uplink = "int8" has no effect with {method}')
    for exact in ("auto", "smallest", "raw"):
        assert config_from_dict(tables | {"wire": {"uplink": exact}}, where="s").wire.uplink == exact
    begun = to_dict(config_from_dict(tables, where="s"))
    begun["wire"]["uplink"] = "int8"
    assert config_from_dict(begun, where="ledger").wire.uplink == "int8", "a study that has begun goes on as it was"


@pytest.mark.parametrize(("text", "said"), [
    ('[study]\nmeasure = "f1"\n' + DATA + METHOD,
     '[study]: measure = "f1": choose "accuracy", "balanced_accuracy", "auroc" or "recall:CLASS".'),
    ('[study]\nmeasure = "recall:eosinophl"\n' + DATA.replace("image", 'classes = ["a", "eosinophil"]\nimage') + METHOD,
     "[study]: measure = \"recall:eosinophl\": there is no class 'eosinophl'. Did you mean 'eosinophil'?"),
    ("[study]\npatience = 3\n" + DATA.replace("image", 'validation_share = "0%"\nimage') + METHOD,
     "[study]: patience = 3 looks at validation images, and there are none."),
    (DATA.replace("image", 'validation_share = "a fifth"\nimage') + METHOD,
     '[data]: validation_share = "a fifth": give a share below 100% such as "20%", or "auto".'),
    (DATA.replace("image", 'validation = "v"\nvalidation_share = "20%"\nimage') + METHOD,
     '[data]: validation_share = "20%" has no effect beside named validation images.'),
    (DATA.replace('labelled = "data"', 'validation_share = "20%"\nclasses = ["a", "b"]')
     + '[method]\nname = "fedavg"\nscenario = "labels-at-silo"\n',
     '[data]: validation_share = "20%" is a share of the coordinator\'s labelled images, and there are none.')])
def test_what_chooses_rounds_is_refused_where_it_is_wrong_or_without_effect(tmp_path: Path, text: str, said: str
                                                                            ) -> None:
    assert refusal(tmp_path, text).startswith(said)


def test_a_stated_share_is_enough_for_patience_of_the_study_and_of_its_baseline(tmp_path: Path) -> None:
    share = DATA.replace("image", 'validation_share = "20%"\nimage')
    study = '[study]\npatience = 3\nbaseline_recipe = "paper"\nbaseline_patience = 5\n'
    config = load(tmp_path, study + share + METHOD)
    assert config.data.stated_share == 0.2
    assert load(tmp_path, "[study]\npatience = 3\n" + DATA + METHOD).data.stated_share is None, "counted later"
