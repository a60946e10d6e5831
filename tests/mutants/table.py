"""The mutants: one wrong change each of the places where a mistake would cost most.

The text to change is a line or part of one that says what it means without its imports, so that files may move.
"""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

_OBJECTIVES = "tests/silo/objectives/test_objectives.py"
_SEMIFL = "tests/silo/trainers/test_semifl.py"
_FEDMATCH = "tests/silo/trainers/test_fedmatch.py"
_LOSSES = "tests/common/learning/test_losses.py"
_PASSES = "tests/common/numerics/test_passes.py"
_CONSISTENCY = "tests/common/learning/test_consistency.py"
_AGREEMENT = "tests/common/learning/test_agreement.py"
_SOFT_LABELS = "tests/common/learning/test_soft_labels.py"
_ROBUST = "tests/coordinator/strategies/parts/test_robust.py"
_WEIGHTS = "tests/coordinator/strategies/parts/test_weights.py"
_NORMALISED = "tests/common/learning/averaging/test_normalised.py"
_POSITIONS = "tests/common/payload/codec/test_positions.py"
_LOSSY = "tests/common/payload/codec/test_lossy.py"
_POLICY = "tests/silo/site/test_policy.py"
_AGENT = "tests/silo/agent/test_agent.py"
_IDENTITY = "tests/common/identity/test_certificates.py"
_ENROLLMENT = "tests/coordinator/federation/test_enrollment.py"
_COMPRESSION = "tests/silo/compute/test_lossy_update.py"
_MEMORY = "tests/silo/site/test_memory.py"
_LEDGER = "tests/coordinator/ledger/test_ledger.py"
_DATABASE = "tests/coordinator/ledger/test_database.py"
_ENGINE = "tests/coordinator/rounds/test_engine.py"
_REFUSALS = "tests/coordinator/rounds/test_refusals.py"
_SILENT = "tests/coordinator/rounds/test_silent_silos.py"
_PARTICIPATION = "tests/coordinator/studies/test_participation.py"
_METER = "tests/common/rpc/test_meter.py"
_BUDGET = "tests/silo/agent/test_daily_budget.py"
_STORE = "tests/common/storage/test_store.py"
_CHUNKS = "tests/common/rpc/test_chunks.py"
_LABELS = "tests/common/learning/imbalance/test_labels.py"
_PSEUDO_LABELS = "tests/common/learning/imbalance/test_pseudo_labels.py"
_PREVALENCE = "tests/common/learning/imbalance/test_prevalence.py"
_OPERATIONS = "tests/coordinator/compute/test_operations.py"
_OVER_SILOS = "tests/coordinator/rounds/test_operator_over_silos.py"
_POINT = "tests/coordinator/export/test_operating_point.py"
_HINTS = "tests/coordinator/strategies/parts/test_labelled_hints.py"
_ROUND_CHOICE = "tests/common/measures/test_round_choice.py"
_MODEL_CHOICE = "tests/coordinator/studies/test_model_choice.py"
_CALIBRATION = "tests/common/measures/test_calibration.py"
_INTERVALS = "tests/common/measures/test_intervals.py"
_HELD_OUT = "tests/coordinator/studies/test_held_out.py"
_SELF_TRAINING = "tests/silo/trainers/test_self_training.py"
_AVERAGED = "tests/common/learning/test_averaged_training.py"
_SEARCH = "tests/coordinator/compute/test_recipe_search.py"
_TENSORS = "tests/common/learning/test_tensors.py"
_EVALUATOR = "tests/silo/agent/test_site_evaluation.py"
_LIKENESS = "tests/common/data/preview/test_likeness.py"
_SHARED = "tests/coordinator/rounds/test_shared_model.py"
_TASK_SERVICE = "tests/coordinator/rounds/test_task_service.py"


def _mutants(area: str, *rows: tuple[str, str, str, str, str]) -> tuple[Mutant, ...]:
    """Rows of (name, file, old, new, tests); several tests are apart by a blank."""
    return tuple(Mutant(name=name, area=area, file=file, old=old, new=new, tests=tuple(tests.split()))
                 for name, file, old, new, tests in rows)


_VIEWS = _mutants(
    "views",
    ("fixmatch-trains-the-weak-view", "silo/objectives/fixmatch.py", "self.logits(model, strong_BCHW)",
     "self.logits(model, weak_BCHW)",
     f"{_OBJECTIVES}::test_fixmatch_trains_the_strong_view_on_the_confident_class_of_the_weak_one"),
    ("fixmatch-labels-the-strong-view", "silo/objectives/fixmatch.py", "self.logits_of_batch(model, weak_BCHW)",
     "self.logits_of_batch(model, strong_BCHW)",
     f"{_OBJECTIVES}::test_fixmatch_trains_the_strong_view_on_the_confident_class_of_the_weak_one"),
    ("uda-trains-the-original", "silo/objectives/uda.py", "self.logits(model, strong_BCHW)",
     "self.logits(model, original_BCHW)",
     f"{_OBJECTIVES}::test_uda_anneals_labels_and_gives_the_strong_view_the_sharpened_target_of_the_original"),
    ("uda-labels-the-strong-view", "silo/objectives/uda.py", "self.logits_of_batch(model, original_BCHW)",
     "self.logits_of_batch(model, strong_BCHW)",
     f"{_OBJECTIVES}::test_uda_anneals_labels_and_gives_the_strong_view_the_sharpened_target_of_the_original"),
    ("mean-teacher-sees-the-students-view", "silo/objectives/mean_teacher.py",
     "self.logits_of_batch(self._teacher, teacher_BCHW)", "self.logits_of_batch(self._teacher, student_BCHW)",
     f"{_OBJECTIVES}::test_the_mean_teacher_follows_the_student_after_every_step"),
    ("weak-and-strong-are-swapped", "silo/objectives/views.py", 'augment.weak if view == "weak" else augment.strong',
     'augment.strong if view == "weak" else augment.weak', "tests/silo/objectives/test_views.py"),
    ("semifl-fix-loss-of-the-weak-view", "silo/trainers/parts/fix_and_mix.py",
     "augment.to_input(batch.strong_BCHW, task.image)",
     "augment.to_input(batch.weak_BCHW, task.image)", f"{_SEMIFL}::test_training_is_the_specified_sequence_of_steps"),
    ("semifl-labels-without-a-weak-view", "silo/trainers/parts/fix_and_mix.py",
     "augment.weak(images_NCHW[cut].to(task.device), task.augmentation, views)", "images_NCHW[cut].to(task.device)",
     f"{_SEMIFL}::test_training_is_the_specified_sequence_of_steps"),
    ("semifl-per-batch-trains-the-weak-view", "silo/trainers/semifl.py", "strong_BCHW[labels.keep_B]",
     "weak_BCHW[labels.keep_B]", f"{_SEMIFL}::test_labels_per_batch_are_those_of_the_model_under_training"),
    ("fedmatch-trains-the-weak-view", "silo/trainers/fedmatch.py", "strong_BCHW=strong_BCHW[keep_B]",
     "strong_BCHW=plain_BCHW[keep_B]", f"{_FEDMATCH}::test_training_is_the_specified_sequence_of_steps"),
    ("fedmatch-consistency-of-all-is-of-the-kept", "silo/trainers/fedmatch.py",
     "torch.ones_like(keep_B) if everywhere else keep_B", "keep_B",
     f"{_FEDMATCH}::test_training_is_the_specified_sequence_of_steps"),
    ("strong-view-without-the-weak-geometry", "common/data/augmentation/augment.py",
     "else weak(images_BCHW, settings, generator)", "else images_BCHW.clone()",
     "tests/common/data/augmentation/test_augment.py::"
     "test_strong_fedmix_is_fedmatchs_randaugment_on_the_weak_geometry"),
)

_THRESHOLDS = _mutants(
    "thresholds",
    ("confidence-must-exceed-the-threshold", "common/learning/losses.py",
     "return confidence_B >= confidence_threshold\n", "return confidence_B > confidence_threshold\n", _LOSSES),
    ("ties-go-to-the-highest-class", "common/learning/losses.py", "torch.where(is_max_BK, index_K, last).amin(dim=-1)",
     "torch.where(is_max_BK, index_K, -1).amax(dim=-1)", _LOSSES),
    ("fedmatch-keeps-above-the-threshold-only", "common/learning/agreement.py",
     "reaches(local_prob_BK.amax(dim=-1), local_B, confidence_threshold)",
     "local_prob_BK.amax(dim=-1) > confidence_threshold",
     _AGREEMENT),
    ("annealing-keeps-what-is-known", "common/learning/consistency.py", "torch.exp(-values_B.detach()) <= threshold",
     "torch.exp(-values_B.detach()) >= threshold", _CONSISTENCY),
    ("sparse-transfer-sends-what-equals-the-threshold", "common/learning/sparse_transfer.py",
     "(value - receiver[name]).abs() > delta_thres", "(value - receiver[name]).abs() >= delta_thres",
     "tests/common/learning/test_sparse_transfer.py"),
    ("sparse-transfer-thresholds-the-wrong-side", "common/learning/sparse_transfer.py",
     "torch.where(tensor.abs() > l1_thres, tensor, 0.0)", "torch.where(tensor > l1_thres, tensor, 0.0)",
     "tests/common/learning/test_sparse_transfer.py"),
    ("soft-threshold-leaves-negatives", "common/learning/agreement.py",
     "parameter.sub_(parameter.clamp(-width, width))",
     "parameter.sub_(parameter.clamp(0.0, width))", _AGREEMENT),
)

_LOSS = _mutants(
    "losses",
    ("mix-loss-weighs-the-wrong-label", "common/learning/losses.py",
     "return lam * cross_entropy(mix_logits_BK, y_fix_B) + (1.0 - lam) * cross_entropy(mix_logits_BK, y_mix_B)",
     "return lam * cross_entropy(mix_logits_BK, y_mix_B) + (1.0 - lam) * cross_entropy(mix_logits_BK, y_fix_B)",
     _LOSSES),
    ("images-mix-the-wrong-way", "common/learning/losses.py", "return lam * a + (1.0 - lam) * b",
     "return lam * b + (1.0 - lam) * a", _LOSSES),
    ("semifl-loss-forgets-a-weight", "common/numerics/passes.py", "loss if term.weight == 1 else term.weight * loss",
     "loss", f"{_PASSES}::test_a_pass_without_a_loss_and_a_parameter_that_no_loss_reaches_are_left_out"),
    ("gradients-of-passes-in-another-order", "common/numerics/passes.py", "for _, gradients in reversed(found)",
     "for _, gradients in found", f"{_PASSES}::test_side_by_side_gives_the_bits_of_one_backward_pass"),
    ("passes-beside-each-other-share-random-numbers", "common/numerics/passes.py",
     "if not torch.equal(before, torch.get_rng_state()):", "if False:",
     f"{_PASSES}::test_a_network_that_draws_random_numbers_is_gone_through_in_turn"),
    ("lanes-lose-the-gradient-mode", "common/numerics/side_by_side.py", "with torch.set_grad_enabled(enabled):",
     "with torch.set_grad_enabled(True):", "tests/common/numerics/test_side_by_side.py"),
    ("threads-are-tried-though-one-is-quick", "common/numerics/thread_count.py",
     "break  # more threads would not be taken", "pass", "tests/common/numerics/test_thread_count.py"),
    ("threads-are-not-kept", "silo/compute/threads.py", "write_durably(file, json.dumps(to_dict(kept), indent=1)",
     "(json.dumps(to_dict(kept), indent=1)", "tests/silo/compute/test_threads.py"),
    ("bf16-statistics-in-16-bits", "common/learning/batch_norm.py", "input = input.float()", "input = input",
     "tests/common/numerics/test_numerics.py"),
    ("masked-mean-over-the-kept", "common/learning/consistency.py", "return total / max(len(values_B), 1)",
     "return total / keep_B.sum().clamp(min=1)", _CONSISTENCY),
    ("uda-masks-with-the-sharpened-target", "common/learning/consistency.py",
     "labels = pseudo_labels(logits_BK, confidence_threshold)",
     "labels = pseudo_labels(logits_BK / temperature, confidence_threshold)", _CONSISTENCY),
    ("uda-target-is-not-sharpened", "common/learning/consistency.py", "torch.softmax(logits_BK / temperature, dim=-1)",
     "torch.softmax(logits_BK, dim=-1)", _CONSISTENCY),
    ("teacher-gets-a-gradient", "common/learning/consistency.py", "torch.softmax(teacher_logits_BK.detach(), dim=-1)",
     "torch.softmax(teacher_logits_BK, dim=-1)", _CONSISTENCY),
    ("teacher-takes-the-students-share", "common/learning/consistency.py",
     "torch._foreach_add_(teacher, student, alpha=1.0 - decay)", "torch._foreach_add_(teacher, student, alpha=decay)",
     _CONSISTENCY),
    ("consistency-divergence-turned-round", "common/learning/agreement.py",
     "(torch.xlogy(prob_BK, prob_BK) - prob_BK * local_log_prob_BK)",
     "(local_log_prob_BK.exp() * (local_log_prob_BK - prob_BK.log()))", _AGREEMENT),
    ("psi-is-pulled-by-a-norm-not-its-square", "common/learning/agreement.py",
     "(sigma[name] - psi[name]).square().sum()",
     "(sigma[name] - psi[name]).abs().sum()", _AGREEMENT),
    ("soft-labels-exponent-upside-down", "common/learning/soft_labels.py", "exponent = min(alpha0 / alpha1,",
     "exponent = min(alpha1 / alpha0,", _SOFT_LABELS),
    ("penalty-is-never-a-sum", "common/learning/soft_labels.py",
     "return len(log_probs_BK) * mean if reduction == \"sum\" else mean", "return mean", _SOFT_LABELS),
    ("ramp-rises-too-early", "common/learning/soft_labels.py", "math.exp(-5.0 * (1.0 - x) ** 2)",
     "math.exp(-5.0 * (1.0 - x))", _SOFT_LABELS),
    ("clipping-scales-up", "common/learning/sgd.py",
     "(max_norm / (norm + 1e-6)).clamp(max=1.0)", "(max_norm / (norm + 1e-6))",
     "tests/common/learning/test_sgd.py"),
    ("momentum-without-nesterov", "common/learning/sgd.py",
     "torch._foreach_add_(gradients, buffers, alpha=settings.momentum)",
     "gradients = buffers", "tests/common/learning/test_sgd.py"),
)

_AVERAGING = _mutants(
    "averaging",
    ("weights-by-size-count-images-that-are-not-there", "coordinator/strategies/parts/weights.py",
     "float(max(count, 0))",
     "float(max(count, 1))", _WEIGHTS),
    ("fedmatch-hands-out-a-mean-that-is-not-tuned", "coordinator/strategies/fedmatch/strategy.py",
     "if settings.coordinator_epochs:", "if settings.coordinator_epochs and round < environment.rounds:",
     "tests/coordinator/strategies/fedmatch/test_strategy.py::"
     "test_a_round_has_the_same_model_whether_it_is_the_last_or_not"),
    ("weights-do-not-sum-to-one", "coordinator/strategies/parts/weights.py",
     "[score / total for score in scores] if total > 0",
     "[score / max(total, 1.0) for score in scores] if total > 0", _WEIGHTS),
    ("fedfreq-favours-who-came-often", "coordinator/strategies/parts/weights.py",
     "(1.0 - count / total) / (len(counts) - 1)",
     "count / total", _WEIGHTS),
    ("participation-is-not-counted", "coordinator/strategies/parts/weights.py",
     "participation.get(silo, 0) + 1 for silo in silos",
     "participation.get(silo, 1) for silo in silos", _WEIGHTS),
    ("reliability-mean-is-not-divided", "coordinator/strategies/parts/weighted_mean.py",
     "1.0 / (self.weight or self.count)",
     "1.0 / self.count", "tests/coordinator/strategies/parts/test_weighted_mean.py"),
    ("normalised-factors-forget-the-steps", "common/learning/averaging/normalised.py", "(together / (total * count))",
     "(together / (total * sum(steps) * len(steps)))", _NORMALISED),
    ("mean-gradient-has-the-wrong-sign", "common/learning/averaging/normalised.py", "tensor.double() / -(lr * steps)",
     "tensor.double() / (lr * steps)", _NORMALISED),
    ("correction-turned-round", "common/learning/averaging/normalised.py",
     "mean / share - control[name].to(mean.dtype)", "control[name].to(mean.dtype) - mean / share", _NORMALISED),
    ("control-sum-forgets-the-mean", "common/learning/averaging/normalised.py",
     "tensor - mean_control[name].to(torch.float64) for name, tensor in grown.items()",
     "tensor for name, tensor in grown.items()", _NORMALISED),
)

_STATISTICS = _mutants(
    "statistics",
    ("merged-variance-counts-one-too-many", "common/learning/batch_norm.py",
     "(part.count - 1) * part.var + part.count", "part.count * part.var + part.count",
     "tests/common/learning/test_batch_norm.py"),
    ("merged-variance-forgets-the-means", "common/learning/batch_norm.py",
     "part.count * (part.mean - mean_C).square()", "0 * (part.mean - mean_C).square()",
     "tests/common/learning/test_batch_norm.py"),
    ("merged-mean-is-not-weighted", "common/learning/batch_norm.py", "(part.count * part.mean for part in parts)",
     "(part.mean * total / len(parts) for part in parts)", "tests/common/learning/test_batch_norm.py"),
)

_ORDER = _mutants(
    "order",
    ("updates-fold-in-another-order", "coordinator/ledger/ledger.py",
     "return sorted((task_row(row) for row in rows), key=lambda task: task.silo.encode())",
     "return sorted((task_row(row) for row in rows), key=lambda task: task.silo.encode(), reverse=True)",
     f"{_LEDGER}::test_an_accepted_update_answers_its_task_and_is_folded_in_silo_order "
     f"{_LEDGER}::test_silos_come_in_byte_order_of_their_names"),
    ("counts-keep-the-order-of-arrival", "coordinator/strategies/parts/weights.py",
     "for silo in sorted(counts, key=str.encode)",
     "for silo in counts", _WEIGHTS),
    ("a-round-commits-what-a-silo-missed", "coordinator/ledger/ledger.py",
     "(study, study, round, TaskState.EXPIRED, TaskState.REFUSED, TaskState.CANCELLED))",
     "(study, study, round, TaskState.REFUSED, TaskState.REFUSED, TaskState.REFUSED))", _LEDGER),
    ("the-sum-of-a-lost-round-is-committed", "coordinator/ledger/ledger.py",
     "pending_round = NULL, pending_kept_digest = NULL WHERE study = ? AND pending_round = ?",
     "pending_round = NULL, pending_kept_digest = NULL WHERE study = ? AND pending_round <= ?", _LEDGER),
    ("ledger-never-syncs", "coordinator/ledger/database.py", "{'FULL' if lasting else 'NORMAL'}", "OFF",
     f"{_DATABASE}::test_what_must_last_is_on_disk_when_its_transaction_ends"),
    ("new-ledger-never-syncs", "coordinator/ledger/database.py", "{'FULL' if waits else 'NORMAL'}", "OFF",
     f"{_DATABASE}::test_what_must_last_is_on_disk_when_its_transaction_ends"),
    ("events-are-not-chained", "common/audit/chain.py",
     "canonical_json([previous, number, unix, kind, study, detail_json])",
     "canonical_json([number, unix, kind, study, detail_json])",
     f"{_DATABASE}::test_the_chain_of_events_is_the_documented_hash"),
)

_QUORUM = _mutants(
    "quorum",
    ("a-phase-closes-below-its-quorum", "coordinator/rounds/engine.py",
     "if now >= phase.deadline_unix and answered >= phase.quorum:", "if now >= phase.deadline_unix:",
     f"{_ENGINE}::test_below_the_quorum_a_phase_waits_on_and_fails_at_the_round_limit"),
    ("a-phase-waits-beyond-its-limit", "coordinator/rounds/engine.py", "if now >= phase.limit_unix:",
     "if now >= phase.limit_unix + 3600:",
     f"{_ENGINE}::test_below_the_quorum_a_phase_waits_on_and_fails_at_the_round_limit"),
    ("an-abstention-is-no-answer", "coordinator/ledger/ledger.py",
     "(TaskState.UPDATED, TaskState.ABSTAINED))", "(TaskState.UPDATED, TaskState.EXPIRED))",
     f"{_ENGINE}::test_an_abstention_is_an_answer_and_a_round_without_updates_is_committed"),
    ("a-refusal-counts-for-the-quorum", "coordinator/ledger/ledger.py",
     "(TaskState.UPDATED, TaskState.ABSTAINED))", "(TaskState.UPDATED, TaskState.ABSTAINED, TaskState.REFUSED))",
     f"{_REFUSALS}::test_two_refusals_do_not_meet_a_quorum_of_two"),
    ("a-silent-silo-is-asked", "coordinator/rounds/sampling.py",
     "if silo not in away and silo not in silent]", "if silo not in away]",
     f"{_SILENT}::test_a_silo_that_dies_costs_one_round_and_is_asked_again_once_it_calls"),
    ("a-later-phase-waits-for-the-dead", "coordinator/rounds/hearing.py",
     "return found if len(found) >= at_least else list(silos)", "return list(silos)",
     f"{_SILENT}::test_a_later_phase_does_not_wait_for_who_has_died_in_an_earlier_one"),
    ("silence-counts-while-the-coordinator-is-off", "coordinator/rounds/hearing.py",
     "now - max(heard, self._listens_since)", "now - heard",
     f"{_SILENT}::test_who_is_silent_survives_a_restart_and_nobody_else_becomes_so"),
    ("images-of-who-refused-are-on-the-card", "coordinator/export/card.py",
     "unlabelled=sum(row.unlabelled or 0 for row in rows if row.took_part)",
     "unlabelled=sum(row.unlabelled or 0 for row in rows)", _PARTICIPATION),
    ("a-quorum-larger-than-the-sample", "coordinator/studies/study_file.py",
     "return min(self.quorum, num_asked) if self.quorum",
     "return self.quorum if self.quorum", "tests/coordinator/studies/test_study_file.py"),
)

_CODEC = _mutants(
    "codec",
    ("complement-from-a-quarter", "common/payload/codec/positions.py",
     "2 * len(positions) > n", "4 * len(positions) > n",
     f"{_POSITIONS}::test_the_rarer_kind_of_elements_is_listed"),
    ("complement-lists-the-wrong-number", "common/payload/codec/positions.py",
     "listed = n - with_value if complement else with_value", "listed = with_value", _POSITIONS),
    ("a-position-beyond-the-block-is-taken", "common/payload/codec/positions.py",
     "if len(positions) and positions[-1] >= n:", "if len(positions) and positions[-1] > n:", _POSITIONS),
    ("a-bitmask-beyond-the-block-is-taken", "common/payload/codec/positions.py", "(listed and positions[-1] >= n)",
     "(listed and positions[-1] > n)", _POSITIONS),
    ("gaps-of-255-are-skips", "common/payload/codec/positions.py",
     "skips = gaps // _SKIP", "skips = gaps // (_SKIP + 1)",
     _POSITIONS),
    ("rice-remainders-in-the-wrong-plane", "common/payload/codec/positions.py",
     "gaps |= plane.astype(np.int64) << number",
     "gaps |= plane.astype(np.int64) << (shift - 1 - number)", _POSITIONS),
    ("classes-lose-a-low-bit", "common/payload/codec/positions.py", "bits &= (np.uint32(1) << counts) - np.uint32(1)",
     "bits &= (np.uint32(1) << counts) - np.uint32(2)", _POSITIONS),
    ("rounding-to-the-nearest-is-down", "common/payload/codec/lossy.py",
     "rounded = np.rint(exact) if generator is None",
     "rounded = np.floor(exact) if generator is None", _LOSSY),
    ("stochastic-rounding-is-biased", "common/payload/codec/lossy.py",
     "exact + generator.random(len(bits), dtype=np.float32))",
     "exact + 0.25 + generator.random(len(bits), dtype=np.float32) / 2)", _LOSSY),
    ("a-negative-scale-is-taken", "common/payload/codec/lossy.py", "if (halves >> np.uint16(15)).any() or not",
     "if not", _LOSSY),
)

_FEEDBACK = _mutants(
    "feedback",
    ("residuals-are-not-added", "silo/compute/lossy_update.py", "value = value + residual", "value = value.clone()",
     f"{_COMPRESSION}::test_the_sum_of_what_was_decoded_is_the_sum_of_the_differences_less_the_last_residual"),
    ("residuals-of-what-was-meant-not-of-what-arrives", "silo/compute/lossy_update.py",
     "value - bits_to_tensor(bits, spec)",
     "value - value", f"{_COMPRESSION}::test_top_k_sends_the_largest_of_the_whole_group_exactly_and_keeps_the_rest "
     f"{_COMPRESSION}::test_what_is_left_out_is_sent_in_a_later_round"),
    ("top-k-rounds-down", "silo/compute/lossy_update.py", "math.ceil(Fraction(share)", "math.floor(Fraction(share)",
     f"{_COMPRESSION}::test_the_count_is_the_share_as_written_rounded_up"),
    ("top-k-keeps-the-smallest", "silo/compute/lossy_update.py", "mask = size > smallest", "mask = size < smallest",
     f"{_COMPRESSION}::test_the_largest_are_those_of_a_stable_sort"),
    ("values-are-sent-lossily", "silo/compute/lossy_update.py",
     "if not uplink.lossy or group.meaning is not Meaning.DIFFERENCE:", "if not uplink.lossy:",
     f"{_COMPRESSION}::test_only_float32_of_groups_of_differences_is_sent_lossily"),
    ("an-earlier-attempts-residuals-stay", "silo/compute/lossy_update.py", "if not key.startswith(own)}", "}",
     f"{_COMPRESSION}::test_after_a_later_phase_the_residuals_of_the_earlier_one_are_those_of_this_round"),
    ("memory-is-committed-though-nothing-was-folded", "silo/site/memory.py",
     "if pending is not None and pending.round == last_folded_round:",
     "if pending is not None and pending.round >= last_folded_round:",
     f"{_MEMORY}::test_pending_memory_is_committed_only_when_its_round_was_folded"),
    ("memory-of-another-round-is-used", "silo/site/memory.py",
     "if committed is not None and committed.round != last_folded_round:",
     "if committed is not None and committed.round > last_folded_round:",
     f"{_MEMORY}::test_memory_of_another_round_than_the_last_folded_one_is_not_used"),
    ("a-damaged-payload-is-sent-again", "silo/site/memory.py",
     "broken = [path for path, digest in self._files(pending) if _digest(path) != digest]",
     "broken = [path for path, digest in self._files(pending) if not path.exists()]",
     f"{_MEMORY}::test_a_pending_answer_whose_payload_is_damaged_is_done_again"),
)

_SITE = _mutants(
    "policy",
    ("every-method-is-permitted", "silo/site/policy.py", "if task.method not in policy.permit.methods:",
     "if not policy.permit.methods:", _POLICY),
    ("every-factory-is-permitted", "silo/site/policy.py",
     'if ":" in task.model.name and task.model.name not in policy.permit.factories:',
     'if ":" in task.model.name and not policy.permit.factories:', _POLICY),
    ("lossy-forms-need-no-permission", "silo/site/policy.py", "if form not in policy.permit.encodings:",
     "if form not in policy.permit.encodings and not policy.permit.encodings:", _POLICY),
    ("payloads-are-limited-one-by-one", "silo/site/policy.py",
     "size = sum(reference.size_bytes for reference in task.payloads)",
     "size = max((reference.size_bytes for reference in task.payloads), default=0)", _POLICY),
    ("groups-that-are-not-permitted-leave", "silo/site/policy.py",
     "(is_declared(group, spec.up) and is_declared(group, policy.permit.groups))", "is_declared(group, spec.up)",
     _POLICY),
    ("metrics-that-are-not-declared-leave", "silo/site/policy.py",
     "(is_declared(metric, spec.metrics) and is_declared(metric, policy.permit.metrics))",
     "is_declared(metric, policy.permit.metrics)", _POLICY),
    ("no-policy-check-before-sending", "silo/agent/answer.py",
     "check_update(site.policy, spec, groups=[group.name for group in manifest], metrics=pending.metrics,",
     "dict(groups=[group.name for group in manifest], metrics=pending.metrics,",
     f"{_AGENT}::test_an_answer_that_was_ready_before_a_restart_does_not_leave_when_silo_toml_forbids_it_since"),
    ("no-policy-check-of-what-was-trained", "silo/site/policy.py", "if size_bytes > policy.limits.max_upload_bytes:",
     "if size_bytes > policy.limits.max_download_bytes:",
     f"{_AGENT}::test_a_result_that_holds_more_than_is_permitted_does_not_leave"),
)

_BUDGETS = _mutants(
    "budgets",
    ("the-last-byte-of-the-budget-is-refused", "silo/agent/daily_budget.py",
     "if not self._limit or self._count.bytes + wanted_bytes <= self._limit:",
     "if not self._limit or self._count.bytes + wanted_bytes < self._limit:", _BUDGET),
    ("only-what-leaves-counts", "silo/agent/daily_budget.py", "return self.sent_bytes + self.received_bytes",
     "return self.sent_bytes", _BUDGET),
    ("a-new-day-goes-on-with-the-old-count", "silo/agent/daily_budget.py",
     "before = self._count if self._count.day == today else DayCount(day=today)", "before = self._count", _BUDGET),
    ("bytes-count-again-at-every-look", "silo/agent/daily_budget.py",
     "self._seen = total", "self._seen = self._seen", _BUDGET),
)

_METERS = _mutants(
    "meter",
    ("a-connections-counters-fall", "common/rpc/meter.py", "TcpCounters(max(new.bytes_sent, old.bytes_sent),",
     "TcpCounters(min(new.bytes_sent, old.bytes_sent),",
     f"{_METER}::test_totals_of_a_connection_never_fall_whatever_the_kernel_says"),
    ("what-was-taken-is-counted-again", "common/rpc/meter.py", "self._taken[key] = list(total)",
     "self._taken.setdefault(key, list(total))", f"{_METER}::test_messages_are_counted_by_rpc_silo_and_direction"),
    ("a-silos-bytes-are-overhead", "common/rpc/meter.py",
     'return self._owners.get(connection) or self._silos.get(connection.peer, "")', 'return ""',
     f"{_METER}::test_each_silo_gets_its_own_bytes_and_strangers_are_overhead"),
    ("an-estimate-forgets-the-connections", "common/rpc/meter.py", "calls * 150 + connections * 3050", "calls * 150",
     f"{_METER}::test_where_nothing_counts_the_bytes_are_estimated_and_labelled"),
    ("a-simulation-counts-a-download-twice", "semisilo/simulation/silos.py",
     "if not has_downloads(self._ledger, study=task.study, round=task.round, phase=task.phase, silo=self.name):",
     "if True:",
     "tests/semisilo/simulation/test_silos.py"),
    ("encodings-of-a-resumed-download-from-byte-0", "coordinator/rounds/task_service.py",
     "self._encodings.carried(digest, offset=offset, sent_bytes=sent_bytes)",
     "self._encodings.carried(digest, offset=0, sent_bytes=sent_bytes)",
     "tests/coordinator/rounds/test_task_service.py::"
     "test_the_encodings_of_a_resumed_download_are_those_of_the_bytes_that_were_sent"),
    ("a-resumed-download-is-told-from-byte-0", "coordinator/rpc/round_service.py",
     "digest, count, offset=request.offset)",
     "digest, count)",
     "tests/coordinator/rpc/test_round_service.py::test_a_download_that_goes_on_counts_the_encodings_of_the_rest_only"),
)

_RESUME = _mutants(
    "resume",
    ("a-chunk-for-another-offset-is-taken", "common/rpc/chunks.py", "if piece.offset != expected_offset:",
     "if piece.offset > expected_offset:", _CHUNKS),
    ("a-chunk-with-a-wrong-checksum-is-taken", "common/rpc/chunks.py", "if zlib.crc32(piece.data) != piece.crc32:",
     "if piece.crc32 == 0:", _CHUNKS),
    ("a-stream-that-ended-early-is-whole", "common/rpc/chunks.py", "if partial.committed_bytes != total_bytes:",
     "if partial.committed_bytes > total_bytes:", _CHUNKS),
    ("a-transfer-starts-at-the-end-of-the-file", "common/storage/store.py",
     "if len(data) != length or zlib.crc32(data) != crc32:", "if len(data) != length:", _STORE),
    ("a-file-grows-beyond-its-size", "common/storage/store.py", "if offset + len(data) > self.size_bytes:",
     "if offset > self.size_bytes:", _STORE),
    ("a-chunk-is-appended-anywhere", "common/storage/store.py", "if offset != self.committed_bytes:",
     "if offset < self.committed_bytes:", _STORE),
)

_DIGESTS = _mutants(
    "digests",
    ("a-payload-of-another-digest-is-taken", "common/storage/store.py",
     "if self.committed_bytes != self.size_bytes or found != digest:", "if self.committed_bytes != self.size_bytes:",
     f"{_STORE}::test_a_wrong_digest_deletes_the_partial_file"),
    ("a-damaged-payload-is-verified", "common/storage/store.py",
     "if found != digest:\n            raise StorageDamaged",
     "if not found:\n            raise StorageDamaged", f"{_STORE}::test_verify_finds_a_damaged_and_a_missing_file"),
    ("tensors-digest-follows-the-order", "common/learning/tensors.py",
     "for name in sorted(tensors, key=str.encode):\n        tensor = tensors[name]",
     "for name in tensors:\n        tensor = tensors[name]", _TENSORS),
    ("tensors-digest-forgets-the-type", "common/learning/tensors.py",
     "_dtype(tensor).encode(), struct.pack", 'b"", struct.pack',
     _TENSORS),
    ("tensors-digest-without-lengths", "common/learning/tensors.py", 'total.update(struct.pack("<q", len(part)))',
     'total.update(b"")', _TENSORS),
    ("seeds-forget-the-silo", "common/learning/seeds.py",
     "{round}\\x1f{silo}", "{round}\\x1f", "tests/common/learning/test_seeds.py"),
    ("seeds-forget-the-round", "common/learning/seeds.py", "{purpose}\\x1f{round}", "{purpose}\\x1f0",
     "tests/common/learning/test_seeds.py"),
    ("an-update-id-forgets-the-content", "silo/site/memory.py", 'f"{task_id}\\n{content}".encode()', "task_id.encode()",
     _MEMORY),
    ("a-checkpoint-of-another-class-is-read", "common/storage/checkpoint.py", 'if header["class"] != cls.__name__:',
     'if not header["class"]:', "tests/common/storage/test_checkpoint.py"),
)

_CERTIFICATES = _mutants(
    "certificates",
    ("a-certificate-of-another-key-is-trusted", "common/identity/certificates.py",
     "if _spki(certificate) != fingerprint(public_key):",
     "if not _spki(certificate):", f"{_IDENTITY}::test_an_issued_certificate_is_checked_for_signature_name_and_key"),
    ("a-certificate-of-another-name-is-trusted", "common/identity/certificates.py",
     "if found != silo_uri(federation, silo):",
     "if not found:", f"{_IDENTITY}::test_an_issued_certificate_is_checked_for_signature_name_and_key"),
    ("two-names-name-somebody", "common/identity/certificates.py",
     'return str(uris[0]) if len(uris) == 1 and len(list(names)) == 1 else ""', 'return str(uris[0]) if uris else ""',
     f"{_IDENTITY}::test_a_certificate_with_two_names_names_nobody"),
    ("a-request-need-not-be-signed", "common/identity/certificates.py",
     "proved = request.is_signature_valid", "proved = True",
     _IDENTITY),
    ("a-silos-certificate-serves", "common/identity/certificates.py", "ExtendedKeyUsageOID.CLIENT_AUTH",
     "ExtendedKeyUsageOID.SERVER_AUTH",
     f"{_IDENTITY}::test_a_silo_certificate_names_the_silo_in_its_uri_and_lasts_thirty_days"),
    ("an-expired-certificate-is-served", "coordinator/rpc/caller.py", "if now > certificate.not_after_unix:",
     "if now > certificate.not_after_unix + 86400:",
     f"{_ENROLLMENT}::test_a_caller_is_checked_for_dates_roster_revocation_and_serial"),
    ("a-revoked-silo-is-served", "coordinator/rpc/caller.py", "if status.revoked:", "if status.revoked and not now:",
     f"{_ENROLLMENT}::test_a_caller_is_checked_for_dates_roster_revocation_and_serial"),
    ("a-replaced-certificate-is-served", "coordinator/rpc/caller.py",
     "if not roster.accepts(silo, certificate.serial):", "if not roster.accepts(silo, certificate.serial) and not now:",
     f"{_ENROLLMENT}::test_a_caller_is_checked_for_dates_roster_revocation_and_serial"),
    ("another-federations-caller-is-served", "coordinator/rpc/caller.py", "if its_federation != federation:",
     "if not its_federation:", f"{_ENROLLMENT}::test_a_caller_without_a_certificate_of_this_federation_is_refused"),
)

_CHOICE = _mutants(
    "choice",
    ("labels-alone-win-a-tie", "coordinator/ledger/progress.py",
     'alone > chosen.metrics.get("selection_score", float("inf"))',
     'alone >= chosen.metrics.get("selection_score", float("inf"))',
     f"{_MODEL_CHOICE}::test_labels_alone_are_handed_over_only_where_they_score_higher"),
    ("classes-are-taken-for-one-anothers-images", "common/measures/intervals.py",
     "math.hypot(*(value - of_it.low for value, of_it in estimates)) / count",
     "math.hypot(*(value - of_it.low for value, of_it in estimates)) / math.sqrt(count)",
     f"{_INTERVALS}::test_of_symmetric_intervals_the_mean_has_the_variance_of_a_mean_and_the_difference_that_of_a"
     "_difference"),
    ("a-difference-takes-the-wrong-ends", "common/measures/intervals.py",
     "math.hypot(first - of_first.low, of_second.high - second)",
     "math.hypot(of_first.high - first, second - of_second.low)",
     f"{_INTERVALS}::test_the_published_example_of_newcombes_interval_comes_out"),
    ("areas-of-the-same-images-are-independent", "common/measures/gain.py",
     'if measure.kind == "balanced_accuracy" else', "if True else",
     "tests/common/measures/test_gain.py::test_of_an_auroc_it_holds_the_true_area_as_often_as_it_says"),
    ("a-difference-within-its-interval-is-claimed", "common/measures/gain.py",
     "not self.interval.low <= 0 <= self.interval.high", "True",
     f"{_MODEL_CHOICE}::test_the_conclusion_claims_a_difference_only_beyond_newcombes_interval"),
    ("the-highest-score-is-chosen", "common/measures/round_choice.py", "each.score >= best.score - best.error",
     "each.score >= best.score", f"{_ROUND_CHOICE}::test_the_latest_round_within_one_error_of_the_best_is_chosen"),
    ("a-rounds-own-error-counts", "common/measures/round_choice.py", "each.score >= best.score - best.error",
     "each.score >= best.score - each.error", f"{_ROUND_CHOICE}::test_it_is_the_error_of_the_best_that_counts"),
    ("an-equal-score-is-a-gain", "common/measures/round_choice.py", "key=lambda each: (each.score, -each.number)",
     "key=lambda each: (each.score, each.number)",
     f"{_ROUND_CHOICE}::test_patience_counts_from_the_earliest_of_the_best"),
    ("test-images-choose", "coordinator/compute/evaluation.py",
     "metrics |= selection_of(on_validation, classes, measure)",
     "metrics |= selection_of(evaluate(model, test or validation, form=environment.image), classes, measure)",
     "tests/coordinator/compute/test_operations.py::test_a_validation_set_is_measured_beside_the_test_set"),
    ("ties-do-not-count-half", "common/measures/calibration.py", "doubled_G = 2 * ends_G - sizes_G + 1",
     "doubled_G = 2 * ends_G",
     f"{_CALIBRATION}::test_the_area_under_the_curve_is_the_share_of_pairs_in_order_with_ties_too"),
    ("imbalance-is-ignored", "common/measures/study_measure.py",
     "if not any(images_K) or max(images_K) <= IMBALANCED * min(images_K):", "if True:",
     "tests/common/measures/test_study_measure.py"),
    ("an-image-twice-is-held-out", "coordinator/studies/held_out.py", "candidates[once_N[candidates]]", "candidates",
     f"{_HELD_OUT}::test_an_image_that_stands_twice_is_not_held_out"),
    ("the-last-of-a-class-is-held-out", "coordinator/studies/held_out.py", "len(members) - 1)", "len(members))",
     f"{_HELD_OUT}::test_the_share_of_every_class_is_drawn_one_at_least_and_never_the_last_one"),
    ("held-out-images-are-trained-on", "coordinator/studies/images.py",
     "kept = np.setdiff1d(np.arange(len(labelled)), drawn)", "kept = np.arange(len(labelled))",
     f"{_HELD_OUT}::test_a_study_with_many_labels_holds_some_out_and_trains_on_the_rest"),
    ("test-images-may-be-labelled-ones", "coordinator/studies/images.py", "check_apart(sets, digests)", "pass",
     f"{_HELD_OUT}::test_a_study_whose_test_images_were_trained_on_is_refused_when_it_is_opened"),
    ("the-chosen-state-is-removed", "coordinator/ledger/cleanup.py", "keep.add(chosen.state_digest)", "pass",
     "tests/coordinator/ledger/test_cleanup.py::test_the_last_three_the_chosen_and_every_fiftieth_stay"),
)

_ALONE = _mutants(
    "labels-alone",
    ("self-training-labels-under-the-models-prior", "silo/trainers/self_training.py",
     "align_logits(logits_NK, torch.tensor(shares), torch.tensor(settings.model_prior))", "logits_NK",
     f"{_SELF_TRAINING}::test_labels_are_those_of_the_posterior_under_the_estimated_shares"),
    ("self-training-counts-labels-that-were-not-kept", "silo/trainers/self_training.py",
     "labels.hard_label_B[labels.keep_B]", "labels.hard_label_B",
     f"{_SELF_TRAINING}::test_the_prior_of_kept_labels_is_counted_over_these_alone_and_never_of_a_share_of_zero"),
    ("labels-at-both-warms-up-at-silos", "silo/trainers/self_training.py",
     "if not settings.labels_at_coordinator and task.round", "if settings.labels_at_silos and task.round",
     f"{_SELF_TRAINING}::"
     "test_with_labels_at_both_a_silo_trains_on_its_own_after_its_pseudo_labels_from_the_first_round_on"),
    ("labels-at-both-drops-the-labels-of-silos", "silo/compute/images.py",
     "labels_count = silos_have_labels(scenario)", 'labels_count = scenario == "labels-at-silo"',
     "tests/silo/compute/test_images.py::"
     "test_labelled_images_are_those_of_the_source_or_those_that_were_named_apart"),
    ("silos-are-dealt-the-coordinators-labelled-images", "semisilo/simulation/splits/splits.py",
     "np.setdiff1d(np.flatnonzero(labels == label), without)", "np.flatnonzero(labels == label)",
     "tests/semisilo/simulation/splits/test_named_splits.py::"
     "test_with_labels_at_both_the_coordinator_has_those_of_its_scenario_and_silos_others"),
    ("fix-loss-without-the-prior", "silo/trainers/parts/fix_and_mix.py",
     "_adjusted(model(_strong(task, batch)), log_prior_K)", "model(_strong(task, batch))",
     f"{_SELF_TRAINING}::test_a_step_takes_both_losses_of_the_logits_and_the_log_shares_of_what_was_kept"),
    ("estimate-of-shares-without-smoothing", "common/learning/imbalance/prevalence.py",
     "next_K = (next_K + smoothing / len(next_K)) / (1.0 + smoothing)", "next_K = next_K",
     "tests/common/learning/imbalance/test_prevalence.py::"
     "test_smoothing_counts_a_share_of_the_images_once_more_evenly"),
    ("warm-up-without-its-average", "coordinator/strategies/self_training.py",
     "tensors.load_into(model, warm_up.average())", "pass",
     "tests/coordinator/strategies/test_self_training.py::"
     "test_silos_start_from_the_average_of_the_warm_up_with_its_own_statistics"),
    ("gate-lets-everything-through", "coordinator/strategies/parts/gate.py", ">= -_ROUNDING", ">= -1.0",
     "tests/coordinator/strategies/parts/test_gate.py::test_the_largest_step_that_is_not_worse_beyond_noise"),
    ("gate-takes-a-model-that-is-not-finite", "coordinator/strategies/parts/gate.py",
     "if step == 0.0:", "if step == 2.0:",
     "tests/coordinator/strategies/parts/test_gate.py::test_what_is_taken_of_model_and_momentum"),
    ("updates-are-not-bounded", "common/learning/robust/norms.py",
     "1.0 if limit is None or norm <= limit else limit / norm", "1.0",
     f"{_ROBUST}::test_an_update_beyond_the_bound_counts_with_its_direction_and_five_medians"),
    ("honest-updates-are-cut-too", "common/learning/robust/norms.py", "limit = factor * statistics.median_low(counted)",
     "limit = statistics.median_low(counted)",
     f"{_ROBUST}::test_without_a_cut_the_bits_are_those_without_a_bound"),
    ("liars-left-alone-in-a-round-are-believed", "common/methods/parts/robust.py",
     "return 2 * f + 3 if settings.rule == \"multi_krum\" else 2 * f + 1", "return 1",
     f"{_ROBUST}::test_with_fewer_updates_than_the_rule_needs_nothing_is_taken_over"),
    ("claimed-steps-stretch-an-update", "coordinator/strategies/fednova.py",
     "return [together / count for count in steps]", "return [1.0 for count in steps]",
     f"{_ROBUST}::test_fednova_bounds_what_a_silo_makes_of_its_number_of_steps"),
    ("corrections-go-on-after-a-cut", "coordinator/strategies/scaffold.py", "renew=tally.renew or CUT",
     "renew=tally.renew",
     f"{_ROBUST}::test_a_cut_begins_the_sum_of_control_variates_anew"),
    ("a-silos-count-buys-its-statistics-more-voices", "coordinator/strategies/parts/batch_norm.py",
     'if robust.rule in ("none", "norm_clipping") or not updates.headers:', "if True:",
     "tests/coordinator/strategies/parts/test_batch_norm.py::"
     "test_under_a_rule_one_liar_moves_no_statistics_out_of_the_honest_range"),
    ("the-judge-tries-no-patches", "coordinator/strategies/parts/judge.py",
     "patched = float(before.added_V.max() - after.added_V.max())", "patched = 0.0",
     "tests/coordinator/strategies/parts/test_judge.py::"
     "test_a_hidden_trigger_is_left_out_though_the_images_without_it_are_right"),
    ("the-judge-looks-at-updates-alone", "coordinator/strategies/parts/judge.py",
     "while len(staying) > 1 and count - len(staying) < most:", "while False:",
     "tests/coordinator/strategies/parts/test_judge.py::"
     "test_a_flipped_sign_is_left_out_where_silos_see_one_class_each"),
    ("average-of-the-weights-never-forgets", "common/learning/averaged_training.py",
     "min(1.0 - 10.0 / max(steps, 1), (1.0 + done) / (10.0 + done))", "1.0 - 10.0 / max(steps, 1)",
     f"{_AVERAGED}::test_the_average_looks_back_over_a_tenth_of_the_training_and_less_at_its_beginning"),
    ("logit-adjustment-turned-around", "common/learning/averaged_training.py", "logits_BK + prior_K",
     "logits_BK - prior_K",
     f"{_AVERAGED}::test_the_loss_with_a_prior_is_least_at_the_likelihood_ratio_and_not_at_the_frequency"),
    ("balanced-labels-are-adjusted", "common/learning/averaged_training.py",
     "<= IMBALANCED * int(present.min())", "< int(present.min())",
     f"{_AVERAGED}::test_only_imbalanced_labels_have_a_prior"),
    ("mixed-labels-without-their-share", "common/learning/averaged_training.py",
     "(1.0 - share) * cross_entropy(adjusted_BK, others_B)", "share * cross_entropy(adjusted_BK, others_B)",
     f"{_AVERAGED}::test_mixed_cross_entropy_is_that_of_the_mixed_labels"),
    ("any-better-rate-is-chosen", "coordinator/compute/recipe_search.py",
     "max(_CLEARLY * difference.error, gain)", "gain",
     f"{_SEARCH}::test_a_rate_is_chosen_over_the_first_only_where_it_is_clearly_better"),
    ("a-dropped-rate-is-chosen", "coordinator/compute/recipe_search.py", "or trials[rate] < max(trials)", "",
     f"{_SEARCH}::test_a_rate_that_was_dropped_is_not_chosen_whatever_its_first_fold_says"),
    ("work-on-other-labels-is-gone-on-with", "coordinator/compute/labels_alone.py",
     "return saved if same and saved.num_labelled == len(self._labelled) else None", "return saved if same else None",
     "tests/coordinator/compute/test_baseline.py::test_a_file_of_other_settings_or_of_another_version_is_begun_again"),
    ("a-budget-is-planned-twice-over", "coordinator/compute/labels_alone.py",
     "(_PLANNED_SHARE * budget - spent) * done / spent", "(2 * budget - spent) * done / spent",
     "tests/coordinator/compute/test_baseline.py"),
    ("the-search-looks-at-test-images", "coordinator/compute/strong_baseline.py",
     "_Part(everything_n[rest], self._labelled, held_n, self._labels_N[held_n].cpu())",
     "_Part(everything_n[rest], self._test, torch.arange(len(self._test)), self._test.labels_N.cpu())",
     "tests/coordinator/compute/test_strong_baseline.py::test_trials_are_measured_on_held_out_labels_alone"),
)

_EQUIVALENT = (
    Mutant(name="pseudo-labels-of-logits-with-a-gradient", area="losses", file="common/learning/consistency.py",
           old="labels = pseudo_labels(weak_logits_BK.detach(), confidence_threshold)",
           new="labels = pseudo_labels(weak_logits_BK, confidence_threshold)", tests=(),
           equivalent="a hard label and a mask carry no gradient, so what is detached costs memory only"),
)

_IMBALANCE = _mutants(
    "imbalance",
    ("shares-are-taken-off-the-logits", "common/learning/imbalance/labels.py",
     "return logits_BK + (tau * shares_K.log())",
     "return logits_BK - (tau * shares_K.log())", f"{_LABELS}::test_the_adjusted_loss_is_menons_equation_10"),
    ("a-balanced-epoch-has-a-class-too-few", "common/learning/imbalance/labels.py", "wanted = each + more",
     "wanted = each",
     f"{_LABELS}::test_in_a_balanced_epoch_every_class_comes_equally_often_and_within_it_every_image"),
    ("alignment-goes-away-from-the-target", "common/learning/imbalance/pseudo_labels.py",
     "return logits_BK + (strength * shift_K)", "return logits_BK - (strength * shift_K)",
     f"{_PSEUDO_LABELS}::test_aligned_probabilities_are_remixmatchs"),
    ("the-running-mean-forgets", "common/learning/imbalance/pseudo_labels.py",
     "weight = max(1.0 / self._batches, _SLOWEST)", "weight = 1.0 / self._batches",
     f"{_PSEUDO_LABELS}::test_the_running_mean_is_arithmetic_at_first_then_exponential"),
    ("the-threshold-of-a-class-is-not-relative", "common/learning/imbalance/pseudo_labels.py",
     "return (tau * confidence.mean * share_K).float()", "return (tau * share_K).float()",
     f"{_PSEUDO_LABELS}::test_thresholds_by_hand"),
    ("a-label-has-another-classs-threshold", "common/learning/losses.py",
     "confidence_threshold.to(confidence_B.device, confidence_B.dtype)[label_B]",
     "confidence_threshold.to(confidence_B.device, confidence_B.dtype).max()",
     f"{_PSEUDO_LABELS}::test_a_threshold_by_class_is_that_of_the_label"),
    ("the-prior-of-training-is-multiplied", "common/learning/imbalance/prevalence.py",
     "probabilities_NK * (prevalence_K / trained_K)", "probabilities_NK * (prevalence_K * trained_K)",
     f"{_PREVALENCE}::test_reweighted_is_saerens_equation_2_4 {_PREVALENCE}::"
     "test_the_prior_of_training_changes_nothing_and_a_class_that_is_not_there_is_never_given"),
    ("one-more-of-the-class-is-missed", "coordinator/export/operating_point.py",
     "own[math.ceil(level * len(own) - _ROUNDING) - 1]", "own[max(0, math.ceil(level * len(own) - _ROUNDING) - 2)]",
     f"{_POINT}::test_thresholds_by_hand_lie_halfway"),
    ("silos-are-told-the-class-shares-without-need", "coordinator/strategies/parts/labelled_hints.py",
     'if settings.distribution_alignment == "labels":', "if True:",
     f"{_HINTS}::test_nothing_is_told_that_no_setting_needs"),
)

_OWN_TEST_IMAGES = _mutants(
    "own test images",
    ("numbers-leave-without-permission", "silo/agent/site_evaluation.py",
     "        if self._policy.permit.site_evaluation:\n            self._unsent.append(entry)",
     "        self._unsent.append(entry)",
     f"{_EVALUATOR}::test_by_default_the_numbers_are_recorded_and_shown_here_and_nothing_of_them_leaves"),
    ("more-right-than-there-are", "common/measures/site_evaluation.py",
     "if not 0 <= self.correct <= self.images <= MAX_IMAGES:", "if not 0 <= self.images <= MAX_IMAGES:",
     "tests/common/measures/test_site_evaluation.py tests/common/rpc/test_convert.py"),
    ("numbers-of-other-classes-are-noted", "coordinator/rounds/task_service.py",
     "if row is None or len(found.classes) != len(row.classes):", "if row is None:",
     f"{_TASK_SERVICE}::test_an_evaluation_that_cannot_be_of_the_study_is_dropped_and_the_silo_goes_on"),
    ("strangers-to-a-study-are-noted", "coordinator/rounds/task_service.py",
     "elif not has_taken_part(self._ledger, found.study, silo):", "elif False:",
     f"{_TASK_SERVICE}::test_an_evaluation_of_a_silo_that_has_answered_is_noted_once_with_an_event"),
    ("inverted-images-pass", "common/data/preview/likeness.py", "if abs(mean - theirs) > _FARTHEST_MEAN * spread:",
     "if theirs - mean > _FARTHEST_MEAN * spread:", _LIKENESS),
    ("a-handful-of-images-is-judged", "common/data/preview/likeness.py",
     "if min(site.images, study.images) < FEWEST_IMAGES or min(study.std) <= 0:", "if min(study.std) <= 0:",
     f"{_LIKENESS}::test_too_few_images_on_either_side_tell_nothing"),
    ("a-study-shares-its-model-unasked", "coordinator/rounds/shared_model.py",
     'if not row.config.get("study", {}).get("share_model", False):', "if False:",
     f"{_SHARED}::test_a_study_keeps_its_model_unless_its_file_says_otherwise"),
    ("strangers-get-the-model", "coordinator/rounds/shared_model.py",
     "if row is None or not has_taken_part(self._ledger, study, silo):", "if row is None:",
     f"{_SHARED}::test_strangers_to_a_study_cannot_tell_it_from_one_that_is_not_there"),
    ("a-model-under-way-is-shared", "coordinator/rounds/shared_model.py",
     "if row.state not in (StudyState.COMPLETED, StudyState.STOPPED) or wanted is None:", "if wanted is None:",
     f"{_SHARED}::test_before_the_end_and_without_its_file_the_model_is_not_ready"),
    ("another-model-counts-as-the-global-one", "coordinator/compute/operations.py",
     "if model is None or not _same(model.tensors, parameters):", "if model is None:",
     "tests/coordinator/compute/test_operations.py::test_a_task_says_that_it_brings_the_model_only_where_its_tensors_"
     "are_those_that_are_exported"),
)

_INSIDERS = _mutants(
    "insiders",
    ("a-count-is-believed", "coordinator/rounds/task_service.py",
     "if declaration.example_count <= announced:", "if True:",
     f"{_OVER_SILOS}::test_an_update_counts_as_from_no_more_images_than_its_silo_has_announced"),
    ("weights-are-not-capped", "coordinator/compute/operations.py",
     "headers = tuple(replace(update.header, num_examples=count)", "headers = tuple(replace(update.header)",
     f"{_OPERATIONS}::test_no_silo_weighs_more_than_the_study_lets_it"),
    ("infinities-are-committed", "coordinator/compute/left_out.py", "return field.name", 'return ""',
     "tests/coordinator/compute/test_left_out.py"),
    ("absurd-values-arrive", "coordinator/compute/update_reader.py",
     "if exceeds(bits, ELEMENT_TYPES[spec.dtype], LARGEST_VALUE):", "if False:",
     f"{_OPERATIONS}::test_a_value_that_is_absurd_is_refused_when_it_arrives"),
    ("the-smallest-update-is-suspected", "coordinator/compute/left_out.py",
     "key=lambda silo: (-measures[silo].norm, silo.encode())", "key=lambda silo: (measures[silo].norm, silo.encode())",
     "tests/coordinator/compute/test_left_out.py"),
    ("a-silo-that-is-set-aside-is-asked", "coordinator/ledger/roster.py",
     '" AND set_aside_unix IS NULL ORDER BY name")]', '" ORDER BY name")]', _OVER_SILOS),
    ("a-silo-that-is-set-aside-counts", "coordinator/rounds/engine.py",
     "quorum_of(sum(silo not in aside for silo in row.sample))", "quorum_of(len(row.sample))",
     f"{_OVER_SILOS}::test_a_silo_that_is_set_aside_loses_its_task_at_once_and_hears_why"),
    ("silos-remember-rounds-that-are-gone", "coordinator/ledger/oversight/rollback.py",
     "        _restore_silos(ledger, study)\n", "", "tests/coordinator/ledger/oversight/test_rollback.py"),
    ("a-round-that-is-gone-is-opened", "coordinator/ledger/ledger.py",
     "if last is not None and number > last + 1:", "if False:", "tests/coordinator/ledger/oversight/test_rollback.py"),
    ("tasks-after-going-back-are-the-same", "coordinator/rounds/engine.py",
     '/{silo}{again}", study', '/{silo}", study',
     f"{_OVER_SILOS}::test_a_task_after_going_back_is_another_one_for_its_silo"),
)

MUTANTS: tuple[Mutant, ...] = (
    *_VIEWS, *_THRESHOLDS, *_LOSS, *_AVERAGING, *_STATISTICS, *_ORDER, *_QUORUM, *_CODEC, *_FEEDBACK, *_SITE, *_BUDGETS,
    *_METERS, *_RESUME, *_DIGESTS, *_CERTIFICATES, *_CHOICE, *_ALONE, *_IMBALANCE, *_OWN_TEST_IMAGES,
    *_INSIDERS, *_EQUIVALENT)
