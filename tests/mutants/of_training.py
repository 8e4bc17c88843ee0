"""Mutants of private training: sampling, noise, charging, and what a step releases."""

from __future__ import annotations

from mutants.mutant import Mutant

GENERATORS = "tests/training/test_generators.py::test_"
LOADING = "tests/training/test_loading.py::test_"
NOISE = "tests/training/test_noise.py::test_"
OWN_LOOP = "tests/training/test_own_loop.py::test_"
READING = "tests/training/test_reading.py::test_"
PAID = "tests/training/test_paid.py::test_"
PRIVATE = "tests/training/test_private.py::test_"
DRAWS_OF_A_LOOP = "tests/training/test_loop.py::test_"
RELEASE = "tests/training/test_release.py::test_"
SAMPLING = "tests/training/test_sampling.py::test_"
CHECKPOINT = "tests/training/test_checkpoint.py::test_"

TRAINING = (
    Mutant(
        "half noise",
        "training/noise.py",
        "alpha=std * _MARGIN[piece.dtype]",
        "alpha=0.5 * std * _MARGIN[piece.dtype]",
        (PRIVATE + "the_noise_has_the_planned_size_and_empty_draws_get_it_too",),
    ),
    Mutant(
        "an own loop that uses earlier micro-batches",
        "training/own_loop.py",
        "            watch.marks.mark_mixed(self._find_leftovers(given))\n",
        "",
        (
            OWN_LOOP + "what_is_left_of_an_earlier_micro_batch_is_refused_where_it_is_used",
            OWN_LOOP + "what_is_left_of_an_earlier_micro_batch_is_found_wherever_it_lies[in_a_bank-4]",
        ),
    ),
    Mutant(
        "an own loop that sees how many records are in a batch of a pass",
        "training/private.py",
        "    most = plan.batch_size + 4 * math.sqrt(",
        "    most = plan.batch_size + 4 * (not plan.tree) * math.sqrt(",
        (OWN_LOOP + "batches_of_a_pass_look_alike_however_many_records_are_in_them",),
    ),
    Mutant(
        "a record of another form that is refused in an own loop",
        "training/loop.py",
        "        if current.is_usual:\n            return self._sum_and_norms",
        "        if True:\n            return self._sum_and_norms",
        (OWN_LOOP + "a_record_of_another_form_is_neither_refused_nor_counted_otherwise_when_it_comes_first[False]",),
    ),
    Mutant(
        "a record of another form that counts only if it is not the first",
        "training/engine/gradients.py",
        "        self._is_tried = self._programs.is_tried = True\n        try:\n",
        "        try:\n",
        (OWN_LOOP + "a_record_of_another_form_is_neither_refused_nor_counted_otherwise_when_it_comes_first[False]",),
    ),
    Mutant(
        "reasons that were found on the records of an earlier run",
        "training/private.py",
        "    programs.forget(model)  #",
        "    #",
        (OWN_LOOP + "reasons_of_an_earlier_run_do_not_show_in_a_later_one",),
    ),
    Mutant(
        "half noise on the grid",
        "training/noise.py",
        ".mul_(std * _MARGIN[torch.float64] / grid)",
        ".mul_(0.5 * std * _MARGIN[torch.float64] / grid)",
        (NOISE + "the_variance_of_noise_is_the_one_asked_for_by_chi_square",),
    ),
    Mutant(
        "half the Laplace noise",
        "training/noise.py",
        "draws.mul_(scale * _MARGIN[torch.float64])",
        "draws.mul_(0.5 * scale * _MARGIN[torch.float64])",
        (RELEASE + "laplace_noise_has_the_planned_scale",),
    ),
    Mutant(
        "half the noise of a tree",
        "training/correlated.py",
        "dtype=self._dtype)}, self._std)",
        "dtype=self._dtype)}, 0.5 * self._std)",
        ("tests/training/test_correlated.py::test_the_noise_of_all_steps_is_that_of_the_tree",),
    ),
    Mutant(
        "noise that does not pay for the grid",
        "training/noise.py",
        "Fraction(grid_sensitivity(clip_norm, dimension, grid, norm))",
        "Fraction(clip_norm)",
        (RELEASE + "the_noise_pays_for_rounding_every_number_of_the_model_to_the_grid",),
    ),
    Mutant(
        "the second half of a vector without noise of its own",
        "training/noise.py",
        "np.sin(sine, out=sine)",
        "np.cos(sine, out=sine)",
        (NOISE + "both_halves_of_a_pass_are_independent",),
    ),
    Mutant(
        "noise for the plan's clip norm where another is in force",
        "training/release.py",
        "self._clip_norm, self._std = clip_norm, std",
        "self._clip_norm, self._std = clip_norm, getattr(self, '_std', std)",
        (RELEASE + "the_noise_of_the_sum_is_that_of_the_clip_in_force_and_independent_of_the_counts",),
    ),
    Mutant(
        "a clip norm that follows a count without noise",
        "training/release.py",
        "self._plan.next_clip(self._clip_norm, float(noisy))",
        "self._plan.next_clip(self._clip_norm, count)",
        (RELEASE + "the_clip_follows_from_noised_counts_alone",),
    ),
    Mutant(
        "an un-noised sum",
        "training/release.py",
        "return {name: noisy[name].div_(size)",
        "return {name: sums[name].div_(size)",
        (PRIVATE + "the_noise_has_the_planned_size_and_empty_draws_get_it_too",),
    ),
    Mutant(
        "sums of micro-batches in float32",
        "training/loop.py",
        "before.to(torch.float64) + value",
        "before + value",
        (PRIVATE + "micro_batches_are_added_in_float64",),
    ),
    Mutant(
        "a model that is no longer finite goes on",
        "training/noise.py",
        "return math.isfinite(float(values.detach().sum())) or bool(values.isfinite().all())",
        "return not math.isnan(float(values.detach().sum())) or bool(values.isfinite().all())",
        (NOISE + "what_is_finite_is_told_by_every_number_also_where_their_sum_overflows",),
    ),
    Mutant(
        "realised batch as divisor",
        "training/loop.py",
        "self._parameters[name].grad = mean",
        "self._parameters[name].grad = mean * self.plan.batch_size / max(len(batch.indices), 1)",
        (PRIVATE + "a_step_is_the_clipped_sum_over_the_draw_divided_by_the_planned_batch",),
    ),
    Mutant(
        "shuffle accounted as Poisson",
        "training/sampling.py",
        "rate, size = Fraction(self.sample_rate), self.size_of_data",
        "size, rate = self.size_of_data, 0\n"
        "        if size:\n"
        "            order = np.argsort(self._source.words(size))\n"
        "            return torch.from_numpy(order[: round(self.sample_rate * size)])",
        (SAMPLING + "the_size_of_a_sample_is_binomial_by_chi_square",),
    ),
    Mutant(
        "a sampling rate a tenth above the one charged",
        "training/sampling.py",
        "rate, size = Fraction(self.sample_rate), self.size_of_data",
        "rate, size = Fraction(self.sample_rate) * 11 / 10, self.size_of_data",
        (SAMPLING + "each_record_is_drawn_with_the_stated_probability",),
    ),
    Mutant(
        "a rate without its last bits",
        "training/sampling.py",
        "    if rest:\n",
        "    if rest and _BITS < 16:\n",
        (SAMPLING + "the_last_bit_of_a_rate_counts",),
    ),
    Mutant(
        "reused seed",
        "randomness.py",
        "    def _key(self) -> bytes:\n        return os.urandom(32)",
        "    def _key(self) -> bytes:\n        return bytes(32)",
        (NOISE + "two_runs_and_a_resume_never_share_noise",),
    ),
    Mutant(
        "the parent's noise after a fork",
        "randomness.py",
        "process = (os.getpid(), _forks)",
        "process = (0, 0)",
        (NOISE + "forked_workers_never_share_noise",),
    ),
    Mutant(
        "a stream that starts over",
        "randomness.py",
        "            if name not in self._streams:\n                self._streams[name] = self._child(name)\n"
        "            return self._streams[name]",
        "            return self._child(name)",
        (NOISE + "two_sources_of_one_seeded_object_go_on_instead_of_starting_over",),
    ),
    Mutant(
        "two tokens for one draw",
        "training/sampling.py",
        "            self._is_used = True\n",
        "            self._is_used = False\n",
        (
            DRAWS_OF_A_LOOP + "a_draw_that_was_released_elsewhere_is_not_released_again",
            SAMPLING + "a_token_is_used_once",
        ),
    ),
    Mutant(
        "a draw that is not charged",
        "training/loop.py",
        "            self._paid.take()\n            batch.token.use()\n",
        "            batch.token.use()\n",
        (PRIVATE + "a_step_is_on_disk_before_its_noise_is_drawn",),
    ),
    Mutant(
        "charge after noise",
        "training/loop.py",
        "            self._paid.take()\n            batch.token.use()\n        self._open = None\n        self.steps_taken += 1\n"
        '        for group in optimizer.param_groups:\n            for value in group["params"]:\n'
        "                value.grad = None  # of parameters that were added or unfrozen since, which get no noise\n"
        "        means = self._release.mean(self._sum, self._count)\n",
        "            batch.token.use()\n        self._open = None\n        self.steps_taken += 1\n"
        '        for group in optimizer.param_groups:\n            for value in group["params"]:\n'
        "                value.grad = None  # of parameters that were added or unfrozen since, which get no noise\n"
        "        means = self._release.mean(self._sum, self._count)\n        self._paid.take()\n",
        (PRIVATE + "a_step_is_on_disk_before_its_noise_is_drawn",),
    ),
    Mutant(
        "steps that count as paid before they are committed",
        "prepaid.py",
        "        if self._held is not None:\n            self._held.commit(self._event, 1 if self._is_whole else block)\n"
        "        self._unpaid -= block\n        self._paid = block\n",
        "        self._unpaid -= block\n        self._paid = block\n"
        "        if self._held is not None:\n            self._held.commit(self._event, 1 if self._is_whole else block)\n",
        (PAID + "a_block_that_was_not_committed_pays_for_no_step",),
    ),
    Mutant(
        "a block of steps charged as one",
        "prepaid.py",
        "self._held.commit(self._event, 1 if self._is_whole else block)",
        "self._held.commit(self._event, 1)",
        (PAID + "steps_are_charged_a_block_at_a_time_before_their_noise",),
    ),
    Mutant(
        "steps that a forked process takes again",
        "prepaid.py",
        "        if os.getpid() != self._process:\n            raise BudgetExceeded(",
        "        if False:\n            raise BudgetExceeded(",
        (PAID + "a_forked_process_cannot_take_steps_that_were_paid_for",),
    ),
    Mutant(
        "an account of another adjacency",
        "prepaid.py",
        "if account.adjacency != adjacency:",
        "if False:",
        (PRIVATE + "an_account_for_another_unit_or_adjacency_is_refused",),
    ),
    Mutant(
        "a part of a draw released after the rest failed",
        "training/loop.py",
        "        except BaseException:\n            self._start(None)\n            if",
        "        except BaseException:\n            if",
        (PRIVATE + "a_draw_of_which_a_part_failed_is_not_released",),
    ),
    Mutant(
        "several losses of one record",
        "training/loop.py",
        "            if current.number in self._used:\n",
        "            if False:\n",
        (PRIVATE + "a_record_adds_one_loss_to_a_step_and_no_more",),
    ),
    Mutant(
        "gradients that no noise covers",
        "training/loop.py",
        "                value.grad = None  # of",
        "                pass  # of",
        (PRIVATE + "gradients_of_parameters_that_came_later_never_reach_the_model",),
    ),
    Mutant(
        "a closure without noise",
        "training/loop.py",
        "if any(value is not None for value in (*args[1:], *kwargs.values())):",
        "if False:",
        (PRIVATE + "a_closure_is_refused_because_its_gradients_have_no_noise",),
    ),
    Mutant(
        "skipped draw",
        "training/loop.py",
        "        if self._open is None:\n            self._open = next(self._served, None)\n",
        "        self._open = next(self._served, None)\n",
        (DRAWS_OF_A_LOOP + "leaving_the_loop_is_no_way_to_skip_a_draw",),
    ),
    Mutant(
        "a draw without a step",
        "training/loop.py",
        "                if self.steps_taken == taken:\n",
        "                if False:\n",
        (DRAWS_OF_A_LOOP + "a_draw_without_a_step_is_refused_because_that_would_tell_of_its_records_and_comes_again",),
    ),
    Mutant(
        "a draw that failed to be charged and is passed over",
        "training/loop.py",
        "            batch.token.use()\n        self._open = None\n",
        "            batch.token.use()\n",
        (DRAWS_OF_A_LOOP + "each_draw_is_used_once_and_there_are_no_more_than_planned",),
    ),
    Mutant(
        "public dropout seed",
        "training/generators.py",
        "_GLOBAL.fill(self._torch, self._source.bytes(_BYTES))",
        "_GLOBAL.fill(self._torch, bytes(range(256)) * (_BYTES // 256) + bytes(_BYTES % 256))",
        (GENERATORS + "masks_do_not_follow_from_a_public_seed_before_or_inside_the_loop[by_step-torch]",),
    ),
    Mutant(
        "masks by a seed of the data set",
        "training/loading.py",
        "            for piece in self._read():\n                self._generators.refresh()\n",
        "            for piece in self._read():\n",
        (GENERATORS + "a_data_set_that_seeds_by_its_index_does_not_make_masks_public",),
    ),
    Mutant(
        "losses by a seed in the loop",
        "training/loop.py",
        "        if not self._generators.are_private:\n",
        "        if False:\n",
        (GENERATORS + "losses_made_by_a_seed_inside_the_loop_are_refused_and_nothing_is_released",),
    ),
    Mutant(
        "workers with public seeds",
        "training/generators.py",
        "        _GLOBAL.fill((torch.default_generator,), hashlib.shake_256(repr(parts).encode()).digest(_BYTES))\n",
        "        del parts\n",
        (GENERATORS + "augmentation_does_not_follow_from_a_public_seed_of_the_script_or_of_a_worker",),
    ),
    Mutant(
        "a generator with 32 private bits",
        "training/generators.py",
        "    words[_STATE] = _to_words(secret[8:])\n    generator.set_state(state)\n",
        "    generator.manual_seed(seed)\n",
        (GENERATORS + "all_of_torchs_state_is_filled_and_not_the_32_bits_that_its_own_seeding_uses",),
    ),
    Mutant(
        "private numbers that are left behind",
        "training/generators.py",
        "            for bring_back in restore.values():\n                bring_back()\n",
        "            restore.clear()\n",
        (GENERATORS + "public_generators_give_afterwards_what_they_would_have_given_without_training[by_step]",),
    ),
    Mutant(
        "a label out of range that is met when it is drawn",
        "training/screening.py",
        "        require_in_range(model, loss, inputs, targets, device)\n",
        "        pass\n",
        (PRIVATE + "a_label_out_of_range_is_refused_before_the_first_draw_and_not_shown",),
    ),
    Mutant(
        "a model that mixes examples without a gradient",
        "training/screening.py",
        "    compat.probe(rows, torch.arange(TRIED))\n",
        "",
        (PRIVATE + "examples_that_mix_without_a_gradient_are_refused_before_anything_is_reserved",),
    ),
    Mutant(
        "an own loop that mixes examples",
        "training/own_loop.py",
        "if self._is_mixed or not watch.marks.is_in_front(losses):",
        "if False:",
        ("tests/training/test_own_loop.py::test_a_loop_that_mixes_examples_is_refused",),
    ),
    Mutant(
        "an own loop that is not watched",
        "training/loop.py",
        "        loop.require_apart(losses)\n",
        "        loop.end()\n",
        (DRAWS_OF_A_LOOP + "a_loop_leaves_out_records_by_a_loss_of_zero",),
    ),
    Mutant(
        "rows that only fill up count",
        "training/loop.py",
        "mask = torch.arange(len(losses)) < current.drawn",
        "mask = torch.arange(len(losses)) < len(losses)",
        (OWN_LOOP + "an_empty_draw_looks_like_any_other",),
    ),
    Mutant(
        "an own loop sees how many were drawn",
        "training/private.py",
        "        parts=parts,\n",
        "        parts=0,\n",
        (OWN_LOOP + "a_loop_cannot_follow_from_how_many_were_drawn",),
    ),
    Mutant(
        "records are padded to the longest",
        "training/reading.py",
        "        alone = [value for record in records if (value := self._collate_alone(record)) is not _UNREAD]\n",
        "        return [MicroBatch(self._collate(records), len(records))] if records else []\n",
        (READING + "an_odd_record_moves_the_sum_by_at_most_the_clip_norm_and_stops_nobody[to which all are padded]",),
    ),
    Mutant(
        "a loop without losses is refused by who was drawn",
        "training/loop.py",
        "        if batch.parts != 0 and not self._has_losses:\n",
        "        if not batch.is_empty and not self._has_losses:\n",
        (PRIVATE + "a_loop_that_adds_up_nothing_is_refused_whether_somebody_was_drawn_or_not[per_example]",),
    ),
    Mutant(
        "reasons of slow records are told",
        "training/loop.py",
        "        return self._slow_reasons or ()\n",
        "        return self._gradients.slow_reasons\n",
        (PRIVATE + "why_a_model_is_slow_tells_nothing_of_the_records_drawn[True]",),
    ),
    Mutant(
        "a closed run looks at records",
        "training/loop.py",
        "        self._is_closed, self._open = True, None\n        self._start(None)\n",
        "",
        (PRIVATE + "a_run_that_was_closed_looks_at_no_record",),
    ),
    Mutant(
        "the size of a draw stops a run on the grid",
        "training/private.py",
        "        _require_exact(plan, data)\n",
        "        pass\n",
        ("tests/training/test_exact.py::test_a_draw_that_is_not_added_up_exactly_is_refused_on_the_grid_only",),
    ),
    Mutant(
        "a record that panics stops the step",
        "training/reading.py",
        "            return self._records[number]\n        except STOPS:\n            raise\n        except BaseException:\n",
        "            return self._records[number]\n        except Exception:\n",
        (READING + "an_odd_record_moves_the_sum_by_at_most_the_clip_norm_and_stops_nobody[that panics]",),
    ),
    Mutant(
        "a worker drops what it cannot send and the loop waits",
        "training/reading.py",
        "            if get_worker_info() is not None:\n",
        "            if False:\n",
        (READING + "the_same_in_a_worker[that no worker can send]",),
    ),
    Mutant(
        "a record with a graph gives it to the others",
        "training/reading.py",
        "    return map_tensors(values, Tensor.detach) if any(tensor.requires_grad for tensor in tensors_of(values)) else values\n",
        "    return values\n",
        (READING + "the_same_in_a_loop_of_ones_own[with a graph]",),
    ),
    Mutant(
        "another record is read by luck",
        "training/reading.py",
        "            with pinned():  # the random numbers with which",
        "            if True:  # the random numbers with which",
        (READING + "a_broken_record_stops_nobody_where_reading_is_a_matter_of_luck",),
    ),
    Mutant(
        "everybody hears of warnings",
        "training/faults.py",
        "    warnings.showwarning = _show_nothing\n",
        "",
        (
            READING + "an_odd_record_moves_the_sum_by_at_most_the_clip_norm_and_stops_nobody[that is warned of]",
            READING + "nobody_hears_of_a_record_of_which_the_model_warns",
        ),
    ),
    Mutant(
        "records of different types in one batch",
        "training/reading.py",
        "            groups.setdefault(_form_of(value, is_collated=is_collated), []).append(value)\n",
        "            groups.setdefault(None, []).append(value)\n",
        (READING + "an_odd_record_leaves_the_others_as_they_are",),
    ),
    Mutant(
        "another in place of a record that cannot be read",
        "training/reading.py",
        "            return _UNREAD\n\n\nclass Collator",
        "            return self._records[0]\n\n\nclass Collator",
        (LOADING + "a_record_that_cannot_be_read_leaves_its_draw_alone_and_stops_nobody",),
    ),
    Mutant(
        "records of one draw in the next",
        "training/loading.py",
        "            while self._last < key:\n",
        "            if self._last < key:\n",
        (LOADING + "what_was_not_read_of_a_batch_is_no_part_of_the_next",),
    ),
    Mutant(
        "an empty draw that does not count",
        "training/loading.py",
        "            yield Batch(draw, partial(self._read, draw), self._generators)\n",
        "            if len(draw.indices):\n                yield Batch(draw, partial(self._read, draw), self._generators)\n",
        (LOADING + "empty_batches_come_with_their_token_and_count_first_last_and_between",),
    ),
    Mutant(
        "a tree that goes on after a draw that failed",
        "training/loop.py",
        "if self.plan.tree and batch.number != self._noised:",
        "if False:",
        ("tests/training/test_correlated.py::test_a_step_that_was_stopped_while_its_noise_was_drawn_ends_the_tree",),
    ),
    Mutant(
        "places of a pass that are drawn anew in each",
        "training/sampling.py",
        "    @cached_property\n    def _batches",
        "    @property\n    def _batches",
        ("tests/training/test_sampling.py::test_a_record_takes_part_once_a_pass_and_always_a_pass_apart",),
    ),
    Mutant(
        "buffer leak",
        "training/checkpoint.py",
        "return {MODEL + name: parameter for name, parameter in model.named_parameters()}",
        "return {MODEL + name: value for name, value in model.state_dict(keep_vars=True).items()}",
        (CHECKPOINT + "buffers_never_leave",),
    ),
)
