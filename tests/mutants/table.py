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
_WEIGHTS = "tests/coordinator/strategies/parts/test_weights.py"
_NORMALISED = "tests/common/learning/test_normalised_averaging.py"
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
_METER = "tests/common/rpc/test_meter.py"
_BUDGET = "tests/silo/agent/test_daily_budget.py"
_STORE = "tests/common/storage/test_store.py"
_CHUNKS = "tests/common/rpc/test_chunks.py"
_TENSORS = "tests/common/learning/test_tensors.py"


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
    ("semifl-fix-loss-of-the-weak-view", "silo/trainers/semifl.py", "augment.to_input(batch.strong_BCHW, task.image)",
     "augment.to_input(batch.weak_BCHW, task.image)", f"{_SEMIFL}::test_training_is_the_specified_sequence_of_steps"),
    ("semifl-labels-without-a-weak-view", "silo/trainers/semifl.py",
     "augment.weak(images_NCHW[cut].to(task.device), task.augmentation, views)", "images_NCHW[cut].to(task.device)",
     f"{_SEMIFL}::test_training_is_the_specified_sequence_of_steps"),
    ("semifl-per-batch-trains-the-weak-view", "silo/trainers/semifl.py", "strong_BCHW[labels.keep_B]",
     "weak_BCHW[labels.keep_B]", f"{_SEMIFL}::test_labels_per_batch_are_those_of_the_model_under_training"),
    ("fedmatch-trains-the-weak-view", "silo/trainers/fedmatch.py", "inputs_BCHW[keep_B], strong_BCHW[keep_B]",
     "inputs_BCHW[keep_B], plain_BCHW[keep_B]", f"{_FEDMATCH}::test_training_is_the_specified_sequence_of_steps"),
    ("strong-view-without-the-weak-geometry", "common/data/augmentation/augment.py",
     "else weak(images_BCHW, settings, generator)", "else images_BCHW.clone()",
     "tests/common/data/augmentation/test_augment.py::"
     "test_strong_fedmix_is_fedmatchs_randaugment_on_the_weak_geometry"),
)

_THRESHOLDS = _mutants(
    "thresholds",
    ("confidence-must-exceed-the-threshold", "common/learning/losses.py", "max_prob_B >= confidence_threshold)",
     "max_prob_B > confidence_threshold)", _LOSSES),
    ("ties-go-to-the-highest-class", "common/learning/losses.py", "torch.where(is_max_BK, index_K, last).amin(dim=-1)",
     "torch.where(is_max_BK, index_K, -1).amax(dim=-1)", _LOSSES),
    ("fedmatch-keeps-above-the-threshold-only", "common/learning/agreement.py",
     "local_prob_BK.amax(dim=-1) >= confidence_threshold", "local_prob_BK.amax(dim=-1) > confidence_threshold",
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
     "self._draws = not torch.equal(state, torch.get_rng_state())", "self._draws = False",
     f"{_PASSES}::test_a_network_that_draws_random_numbers_is_gone_through_in_turn"),
    ("lanes-lose-the-gradient-mode", "common/numerics/side_by_side.py", "with torch.set_grad_enabled(enabled):",
     "with torch.set_grad_enabled(True):", "tests/common/numerics/test_side_by_side.py"),
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
    ("normalised-factors-forget-the-steps", "common/learning/normalised_averaging.py", "(together / (total * count))",
     "(together / (total * sum(steps) * len(steps)))", _NORMALISED),
    ("mean-gradient-has-the-wrong-sign", "common/learning/normalised_averaging.py", "tensor.double() / -(lr * steps)",
     "tensor.double() / (lr * steps)", _NORMALISED),
    ("correction-turned-round", "common/learning/normalised_averaging.py",
     "mean / share - control[name].to(mean.dtype)", "control[name].to(mean.dtype) - mean / share", _NORMALISED),
    ("control-sum-forgets-the-mean", "common/learning/normalised_averaging.py",
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
    ("events-are-not-chained", "coordinator/ledger/database.py",
     "canonical_json([previous, number, unix, kind, study, text])",
     "canonical_json([number, unix, kind, study, text])",
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
     "study, round, phase, TaskState.UPDATED, TaskState.ABSTAINED,",
     "study, round, phase, TaskState.UPDATED, TaskState.EXPIRED,",
     f"{_ENGINE}::test_an_abstention_is_an_answer_and_a_round_without_updates_is_committed"),
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
     "digest, sent, offset=request.offset)",
     "digest, sent)",
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
     "if certificate.serial not in status.valid_serials:", "if not status.valid_serials:",
     f"{_ENROLLMENT}::test_a_caller_is_checked_for_dates_roster_revocation_and_serial"),
    ("another-federations-caller-is-served", "coordinator/rpc/caller.py", "if its_federation != federation:",
     "if not its_federation:", f"{_ENROLLMENT}::test_a_caller_without_a_certificate_of_this_federation_is_refused"),
)

_EQUIVALENT = (
    Mutant(name="pseudo-labels-of-logits-with-a-gradient", area="losses", file="common/learning/consistency.py",
           old="labels = pseudo_labels(weak_logits_BK.detach(), confidence_threshold)",
           new="labels = pseudo_labels(weak_logits_BK, confidence_threshold)", tests=(),
           equivalent="a hard label and a mask carry no gradient, so what is detached costs memory only"),
)

MUTANTS: tuple[Mutant, ...] = (
    *_VIEWS, *_THRESHOLDS, *_LOSS, *_AVERAGING, *_STATISTICS, *_ORDER, *_QUORUM, *_CODEC, *_FEEDBACK, *_SITE, *_BUDGETS,
    *_METERS, *_RESUME, *_DIGESTS, *_CERTIFICATES, *_EQUIVALENT)
