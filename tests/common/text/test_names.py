"""Names as people write them, brought to what is allowed."""

from __future__ import annotations

from semisilo.common.identity.certificates import is_name
from semisilo.common.text.names import nearest_name
from tests.each_of import each_of


@each_of(("text", "name"), [
    ("Universitätsklinik Köln", "universitaetsklinik-koeln"), ("Hospital A", "hospital-a"),
    ("GROSS-GERAU", "gross-gerau"),
    ("Groß Gerau", "gross-gerau"), ("Ærøskøbing", "aeroeskoebing"), ("Łódź", "lodz"), ("São Paulo", "sao-paulo"),
    ("St. Mary's (north)", "st-marys-north"), ("hospital_a", "hospital-a"), ("--a--b--", "a-b"), ("x" * 80, "x" * 63),
    ("Köln", "koeln"), ("病院", ""), ("", ""), ("Klinik 病院 1", "klinik-1")])
def test_the_nearest_name_is_one(text: str, name: str) -> None:
    assert nearest_name(text) == name
    assert name == "" or is_name(name)


def test_what_else_may_stand_in_a_name_is_kept() -> None:
    assert nearest_name("Münster_Süd 2", also="_-", capitals=True) == "Muenster_Sued-2"
    assert nearest_name("Ä", also="_-", capitals=True) == "Ae"
