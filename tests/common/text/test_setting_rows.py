"""Settings as rows."""

from __future__ import annotations

from semisilo.common.text.setting_rows import setting_rows


def test_tables_within_a_table_become_dotted_keys_save_the_methods_own_settings() -> None:
    config = {"study": {"seed": 1, "name": "a"}, "data": {"image": {"size": 8, "mean": [0.5]}},
              "method": {"name": "semifl", "settings": {"lr": 0.1, "inner": {"mu": None}}}}
    assert setting_rows(config) == [
        ("study", "seed", "1"), ("study", "name", "a"), ("data", "image.size", "8"), ("data", "image.mean", "[0.5]"),
        ("method", "name", "semifl"), ("method", "lr", "0.1"), ("method", "inner.mu", "null")]


def test_a_text_stands_as_it_is_and_letters_beyond_ascii_stay() -> None:
    assert setting_rows({"a": {"b": "ü <b>", "c": ["ü"], "d": True}}) == [
        ("a", "b", "ü <b>"), ("a", "c", '["ü"]'), ("a", "d", "true")]
    assert setting_rows({"a": 3}) == [("a", "", "3")]
