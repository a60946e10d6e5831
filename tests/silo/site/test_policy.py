"""What the hospital does not permit is refused before anything is fetched, and nothing else leaves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from semisilo.common.config import to_dict
from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.errors import BadConfiguration, MethodNotPermitted, NotPermitted, UnknownName
from semisilo.common.methods import METHODS
from semisilo.common.methods.contract import ModelSettings, PayloadRef, TaskSpec
from semisilo.common.methods.numerics import Numerics
from semisilo.common.methods.parts.privacy import DifferentialPrivacy
from semisilo.common.methods.semifl import SemiFLSettings
from semisilo.common.methods.uplink import LOSSY_FORMS, parse_uplink
from semisilo.silo.site.home import SiloHome
from semisilo.silo.site.policy import (
    Limits,
    Permit,
    Policy,
    PrivacyPolicy,
    Require,
    check_task,
    check_update,
    load_policy,
    policy_text,
)
from tests.each_of import each_of
from tests.plugin_kit import install, on_the_module_path

TASK = TaskSpec(
    task_id="first/1/train/a", study="first", round=1, rounds=3, phase="train", silo="a", method="semifl",
    settings=to_dict(SemiFLSettings()), model=ModelSettings(classes=("x", "y")),
    image=ImageForm(size=8, channels=1, mean=(0.5,), std=(0.5,)), augmentation=AugmentationSettings(),
    numerics=Numerics(), payloads=(PayloadRef("ab" * 32, 1000, ("model", "batch_norm")),), last_folded_round=0, seed=1)


def test_the_written_file_means_the_same_as_no_file(tmp_path: Path) -> None:
    (tmp_path / "silo.toml").write_text(policy_text(), encoding="utf-8")
    assert load_policy(tmp_path / "silo.toml") == load_policy(tmp_path / "missing.toml") == Policy()


def test_a_link_whose_file_is_away_is_not_taken_for_the_defaults(tmp_path: Path) -> None:
    """A share that is late, or a file that was renamed, permitted everything without a word."""
    (tmp_path / "silo.toml").symlink_to(tmp_path / "mounted" / "silo.toml")
    with pytest.raises(BadConfiguration, match="a link to a file that is not there"):
        load_policy(tmp_path / "silo.toml")
    with pytest.raises(BadConfiguration, match="nothing says what this site permits"):
        SiloHome(tmp_path).require_policy()


def test_an_empty_file_is_not_taken_for_the_defaults_and_a_comment_is(tmp_path: Path) -> None:
    """As the place of a mounted file stays behind when the mount goes, or a disk that was full."""
    home = SiloHome(tmp_path)
    home.policy.touch()
    with pytest.raises(BadConfiguration, match="empty, so nothing says what this site permits"):
        home.require_policy()
    home.policy.write_text("# the defaults\n")
    home.require_policy()
    assert load_policy(home.policy) == Policy()


def test_what_is_no_identity_among_the_peers_is_named(tmp_path: Path) -> None:
    (tmp_path / "silo.toml").write_text('[peers]\nb = "ed25519:12"\n')
    with pytest.raises(BadConfiguration, match=r"\[peers\] b: 'ed25519:12' is not an identity"):
        load_policy(tmp_path / "silo.toml")


def test_the_default_permits_every_built_in_method_and_no_factory() -> None:
    assert Policy().methods == tuple(sorted(METHODS))
    assert Policy().permit.factories == ()
    assert check_task(Policy(), TASK).name == "semifl"


@pytest.mark.parametrize(("text", "words"), [
    ("[permit]\nmethod = []\n", ("unknown key 'method'", "methods")),
    ("[limit]\n", ("unknown key 'limit'", "limits")),
    ("[permit]\nmax_upload_bytes = 3\n",
     ("silo.toml: [permit]: unknown key 'max_upload_bytes'", "It belongs in [limits].")),
    ("[permit]\nmethods = ['semifi']\n", ("semifi", "semifl")),
    ("[permit]\ngroups = ['model', 'batchnorm']\n", ("batchnorm", "batch_norm")),
    ("[permit]\nmetrics = ['los']\n", ("los", "loss")),
    ("[permit]\nencodings = ['int2']\n", ("int2", "int4", "top-k")),
    ("[permit]\nfactories = ['my.module']\n", ("my.module", "package.module:name")),
    ("[permit]\nmodel_files = ['my_net.py']\n", ("my_net.py", "silo permit-model FILE")),
    ("[privacy]\nmax_epsilon = -1.0\n", ("max_epsilon", "above 0")),
    ("[privacy]\ndelta = 1.0\n", ("delta", "below 1")),
    ("[privacy]\nepsilon = 1.0\n", ("unknown key 'epsilon'", "max_epsilon")),
    ("[limits]\nmax_download_bytes = 0\n", ("max_download_bytes", "at least 1")),
    ("[limits]\nmax_download_bytes = '1 GB'\n", ("max_download_bytes", "whole number")),
    ("[data]\non_error = 'ignore'\n", ("ignore", "stop")),
    ("[data]\nlabelled = '/known'\n", ("labelled without source", "silo join")),
    ("[data]\ntest = '/known'\n", ("test without source", "silo join")),
    ("[data]\nlabeled = '/known'\n", ("unknown key 'labeled'", "'labelled'")),
    ("[permit\n", ("not valid TOML",)),
])
def test_a_slip_in_the_file_is_named_with_what_is_right(tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    path = tmp_path / "silo.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadConfiguration) as caught:
        load_policy(path)
    for word in (str(path), *words):
        assert word in caught.value.line()


def test_a_method_that_is_not_listed_is_refused_by_name() -> None:
    with pytest.raises(MethodNotPermitted, match="semifl"):
        check_task(Policy(permit=Permit(methods=())), TASK)


def test_a_method_that_this_version_does_not_have_is_refused_even_when_permitted() -> None:
    with pytest.raises(UnknownName, match="newer"):
        check_task(Policy(permit=Permit(methods=("newer",))), replace(TASK, method="newer"))


@pytest.mark.parametrize("group", ["model", "batch_norm"])
def test_a_task_that_needs_a_group_that_is_not_permitted_is_refused_by_its_name(group: str) -> None:
    groups = tuple({"model", "batch_norm"} - {group})
    with pytest.raises(NotPermitted, match=group):
        check_task(Policy(permit=Permit(groups=groups)), TASK)


def test_a_task_that_needs_a_metric_that_is_not_permitted_is_refused_by_its_name() -> None:
    with pytest.raises(NotPermitted, match="label_ratio"):
        check_task(Policy(permit=Permit(metrics=("loss",))), TASK)


def test_a_model_factory_is_refused_unless_this_very_name_is_listed() -> None:
    task = replace(TASK, model=replace(TASK.model, name="os:system"))
    for factories in ((), ("os:popen",), ("os.path:join",)):
        with pytest.raises(NotPermitted, match="os:system"):
            check_task(Policy(permit=Permit(factories=factories)), task)
    check_task(Policy(permit=Permit(factories=("os:system",))), task)


def test_a_file_that_builds_a_network_is_refused_unless_its_very_digest_is_listed() -> None:
    model = replace(TASK.model, name="my_net.py:build", factory_sha256="a" * 64)
    task = replace(TASK, model=model)
    for permit in (Permit(), Permit(factories=("my_net.py:build",)), Permit(model_files=("b" * 64,))):
        with pytest.raises(NotPermitted, match=f"my_net.py' .SHA-256 {'a' * 64}") as caught:
            check_task(Policy(permit=permit), task)
        assert "silo permit-model my_net.py" in caught.value.remedy
    check_task(Policy(permit=Permit(model_files=("b" * 64, "a" * 64))), task)
    with pytest.raises(NotPermitted, match="not said"):
        check_task(Policy(permit=Permit(model_files=("a" * 64,))),
                   replace(task, model=replace(model, factory_sha256="")))


@each_of(("uplink", "forms"), [
    ("bf16", ["bf16"]), ("int8", ["int8"]), ("int4", ["int4"]), ("top-k 1%", ["top-k"]),
    ("top-k 1% int8", ["int8", "top-k"])])
def test_a_lossy_form_is_refused_unless_it_is_listed(uplink: str, forms: list[str]) -> None:
    task = replace(TASK, uplink=parse_uplink(uplink))
    check_task(Policy(), task)
    check_task(Policy(permit=Permit(encodings=tuple(forms))), task)
    for form in forms:
        others = tuple(other for other in LOSSY_FORMS if other != form)
        with pytest.raises(NotPermitted, match=form) as caught:
            check_task(Policy(permit=Permit(encodings=others)), task)
        assert "[permit] encodings in silo.toml of 'a'" in caught.value.remedy


@each_of("uplink", ["raw", "auto", "smallest", "top-k 100%"])
def test_an_exact_form_needs_no_permission(uplink: str) -> None:
    check_task(Policy(permit=Permit(encodings=())), replace(TASK, uplink=parse_uplink(uplink)))


def test_a_payload_with_a_group_that_the_method_does_not_declare_is_refused() -> None:
    with pytest.raises(NotPermitted, match="helper_psi/0"):
        check_task(Policy(), replace(TASK, payloads=(PayloadRef("ab" * 32, 10, ("helper_psi/0",)),)))


def test_payloads_are_limited_by_their_sum() -> None:
    policy = Policy(limits=Limits(max_download_bytes=1500))
    check_task(policy, TASK)
    with pytest.raises(NotPermitted, match="2000"):
        check_task(policy, replace(TASK, payloads=TASK.payloads * 2))


@each_of(("settings", "word"), [
    ({"lrr": 0.1}, "lrr"), ({"lr": "fast"}, "lr"), ({"lr": -1.0}, "lr"),
    ({"scenario": "labels-at-silo"}, "labels-at-silo"),
])
def test_settings_that_do_not_fit_the_method_are_refused(settings: dict[str, object], word: str) -> None:
    with pytest.raises(BadConfiguration, match=word):
        check_task(Policy(), replace(TASK, settings=settings))


def test_only_declared_and_permitted_groups_and_metrics_leave() -> None:
    spec, policy = METHODS["semifl"], Policy()
    check_update(policy, spec, groups=("model", "batch_norm"), metrics={"loss": 1.0}, size_bytes=10)
    with pytest.raises(NotPermitted, match="images"):
        check_update(policy, spec, groups=("model", "images"), metrics={}, size_bytes=10)
    with pytest.raises(NotPermitted, match="patients"):
        check_update(policy, spec, groups=(), metrics={"patients": 3.0}, size_bytes=0)
    with pytest.raises(NotPermitted, match="agreement_loss"):  # permitted, but another method's
        check_update(policy, spec, groups=(), metrics={"agreement_loss": 3.0}, size_bytes=0)
    with pytest.raises(NotPermitted, match="batch_norm"):
        check_update(Policy(permit=Permit(groups=("model",))), spec, groups=("batch_norm",), metrics={}, size_bytes=1)
    with pytest.raises(NotPermitted) as caught:
        check_update(Policy(limits=Limits(max_upload_bytes=9)), spec, groups=("model",), metrics={}, size_bytes=10)
    assert "max_upload_bytes" in caught.value.line()


@pytest.mark.parametrize(("dp", "said"), [
    (None, "has no differential privacy"),
    (DifferentialPrivacy(unit="silo", noise_multiplier=1.0), "leaves clipping and noise to the coordinator")])
def test_a_site_with_a_budget_refuses_studies_that_do_not_hide_single_images(dp: DifferentialPrivacy | None,
                                                                            said: str) -> None:
    """Such a study would spend without end; it is refused before a byte is fetched."""
    strict = Policy(privacy=PrivacyPolicy(max_epsilon=3.0))
    with pytest.raises(NotPermitted) as error:
        check_task(strict, replace(TASK, dp=dp))
    assert said in error.value.text
    assert "[privacy] max_epsilon = 3 in silo.toml" in error.value.text
    assert check_task(Policy(), replace(TASK, dp=dp)).name == "semifl"
    assert check_task(strict, replace(TASK, dp=DifferentialPrivacy(noise_multiplier=1.0))).name == "semifl"


@pytest.mark.parametrize("dp", [DifferentialPrivacy(unit="silo", noise_multiplier=1.0),
                                DifferentialPrivacy(noise_multiplier=1.0, honest_silos=3)])
def test_a_budget_counts_on_the_noise_of_others_only_where_it_is_known_who_they_are(dp: DifferentialPrivacy) -> None:
    """The coordinator can make up silos that add none."""
    task, budget = replace(TASK, dp=dp, secure=b"masks"), PrivacyPolicy(max_epsilon=3.0)
    with pytest.raises(NotPermitted, match="noise of several silos together") as error:
        check_task(Policy(privacy=budget), task)
    assert "[peers]" in error.value.remedy
    assert check_task(Policy(privacy=budget, peers={"b": "x"}), task).name == "semifl"
    assert check_task(Policy(privacy=budget, require=Require(pinned_peers=True)), task).name == "semifl"
    assert check_task(Policy(), task).name == "semifl", "without a budget nothing is promised"
    alone = replace(task, dp=DifferentialPrivacy(noise_multiplier=1.0, honest_silos=1))
    assert check_task(Policy(privacy=budget), alone).name == "semifl", "its own noise is the whole"


def test_epsilon_needs_no_permission_and_other_numbers_do() -> None:
    """It follows from counts; a silo.toml of before this version does not name it."""
    spec, nothing = METHODS["fedavg"], Policy(permit=Permit(metrics=()))
    check_update(nothing, spec, groups=(), metrics={"epsilon": 1.0}, size_bytes=0)
    with pytest.raises(NotPermitted, match="'loss'"):
        check_update(nothing, spec, groups=(), metrics={"loss": 1.0}, size_bytes=0)
    with pytest.raises(NotPermitted, match="'epsilon'"):
        check_update(Policy(), METHODS["semifl"], groups=(), metrics={"epsilon": 1.0}, size_bytes=0)


def test_numbered_groups_are_covered_by_their_pattern_and_nothing_else_is() -> None:
    spec = replace(METHODS["semifl"], up={"helper_psi/*": next(iter(METHODS["semifl"].up.values()))})
    policy = Policy(permit=Permit(groups=("helper_psi/*",)))
    check_update(policy, spec, groups=("helper_psi/0", "helper_psi/12"), metrics={}, size_bytes=1)
    for name in ("helper_psi", "helper_psi/", "helper_psi/x", "helper_psi/1/images", "helper_psis/1"):
        with pytest.raises(NotPermitted):
            check_update(policy, spec, groups=(name,), metrics={}, size_bytes=1)


# Plug-ins -------------------------------------------------------------------------------------------------------------


GOSSIP = replace(TASK, method="gossip", settings={"scenario": "labels-at-coordinator", "strength": 0.5},
                 payloads=(PayloadRef("ab" * 32, 1000, ("model",)),))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Path]:
    """An empty folder on the module path."""
    with on_the_module_path(tmp_path) as folder:
        yield folder


def _policy(path: Path, permit: str) -> Policy:
    path.write_text(f"[permit]\n{permit}\n", encoding="utf-8")
    return load_policy(path)


def test_an_installed_plug_in_is_refused_unless_the_file_lists_it(site: Path) -> None:
    install(site)
    for policy in (Policy(), _policy(site / "silo.toml", "groups = ['model']")):
        assert "gossip" not in policy.methods
        with pytest.raises(MethodNotPermitted, match="gossip"):
            check_task(policy, GOSSIP)


def test_a_listed_plug_in_runs_once_what_it_moves_is_listed_too(site: Path) -> None:
    install(site)
    listed = "methods = ['gossip', 'semifl']"
    policy = _policy(site / "silo.toml", listed)
    assert policy.methods == ("gossip", "semifl")
    with pytest.raises(NotPermitted, match="tensor group 'gossip'"):
        check_task(policy, GOSSIP)
    policy = _policy(site / "silo.toml", f"{listed}\ngroups = ['model', 'gossip']")
    with pytest.raises(NotPermitted, match="metric 'chatter'"):
        check_task(policy, GOSSIP)
    policy = _policy(site / "silo.toml", f"{listed}\ngroups = ['model', 'gossip']\nmetrics = ['chatter']")
    spec = check_task(policy, GOSSIP)
    check_update(policy, spec, groups=("model", "gossip"), metrics={"chatter": 1.0}, size_bytes=10)
    with pytest.raises(BadConfiguration, match="strenght"):
        check_task(policy, replace(GOSSIP, settings={"strenght": 1.0}))


def test_groups_of_a_plug_in_that_is_not_listed_are_no_valid_names(site: Path) -> None:
    install(site)
    with pytest.raises(BadConfiguration, match="there is no 'gossip'"):
        _policy(site / "silo.toml", "methods = ['semifl']\ngroups = ['model', 'gossip']")


def test_a_listed_plug_in_that_is_not_installed_stops_the_silo_at_its_start(site: Path) -> None:
    with pytest.raises(BadConfiguration, match="there is no 'gossip'"):
        _policy(site / "silo.toml", "methods = ['gossip']")


def test_a_listed_plug_in_that_is_broken_stops_the_silo_at_its_start(site: Path) -> None:
    install(site, method="raise ValueError('too old')\n")
    with pytest.raises(BadConfiguration, match="too old"):
        _policy(site / "silo.toml", "methods = ['gossip']")


def test_a_budget_may_stand_beside_what_else_a_site_requires(tmp_path: Path) -> None:
    path = tmp_path / "silo.toml"
    path.write_text("[require]\nmax_epsilon = 3.0\nsecure_aggregation = true\n"
                    "[privacy]\nmax_epsilon = 0.0\ndelta = 1e-6\n")
    assert load_policy(path).privacy == PrivacyPolicy(max_epsilon=3.0, delta=1e-6)
    assert load_policy(path).require == Require(secure_aggregation=True)
    path.write_text("[require]\nmax_epsilon = 3.0\n[privacy]\nmax_epsilon = 2.0\n")
    with pytest.raises(BadConfiguration, match=r"in \[privacy\] and, with another value, in \[require\]"):
        load_policy(path)
    path.write_text('[require]\nmax_epsilon = "few"\n')
    with pytest.raises(BadConfiguration, match="max_epsilon"):
        load_policy(path)


def test_a_site_whose_weights_go_to_no_other_silo_refuses_helpers_and_says_which_line_it_is() -> None:
    """FedMatch hands a silo's weights to others; without helpers it is allowed."""
    alone = Policy(require=Require(no_helpers=True))
    task = replace(TASK, method="fedmatch", settings={"num_helpers": 2})
    with pytest.raises(NotPermitted, match="num_helpers = 2") as error:
        check_task(alone, task)
    assert "[require] no_helpers in silo.toml" in error.value.remedy
    assert check_task(Policy(), task).name == "fedmatch"
    assert check_task(alone, replace(task, settings={"num_helpers": 0})).name == "fedmatch"
