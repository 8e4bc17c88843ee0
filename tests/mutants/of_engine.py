"""Mutants of the engine of clipped sums, for one model and for many at once."""

from __future__ import annotations

from mutants.mutant import Mutant

CLIP = "tests/training/test_clip.py::test_"
ENSEMBLE = "tests/training/test_ensemble.py::test_"
GRADIENTS = "tests/training/test_gradients.py::test_"
MANY = "tests/training/test_many.py::test_"
SHARED = "tests/training/test_shared.py::test_"
INDEPENDENCE = "tests/training/test_independence.py::test_"
MOVES = "an_operation_that_moves_or_mixes_rows_is_seen"
PROGRAMS = "tests/training/test_programs.py::test_"
ZOO = "tests/zoo/test_zoo.py::test_the_sum_is_that_of_a_loop_over_single_records_or_the_model_is_refused["

ENGINE = (
    Mutant(
        "no clip",
        "training/gradients.py",
        "found = lengths.reciprocal().mul_(limit).clamp_(max=1.0)",
        "found = torch.ones_like(lengths)",
        (GRADIENTS + "replacing_one_example_by_a_monstrous_one_moves_the_sum_by_at_most_twice_the_clip",),
    ),
    Mutant(
        "twice the clip norm",
        "training/clip.py",
        "return share * (1 - TOLERANCE)",
        "return 2 * share",
        (GRADIENTS + "one_clipped_example_alone_has_exactly_the_stated_length",),
    ),
    Mutant(
        "a clip without room for rounding",
        "training/clip.py",
        "return share * (1 - TOLERANCE)",
        "return share",
        (
            GRADIENTS
            + "one_more_of_a_thousand_examples_that_point_the_same_way_moves_the_float32_sum_by_at_most_the_clip",
        ),
    ),
    Mutant(
        "clip per batch",
        "training/gradients.py",
        "limit = self.clip.limit(len(groups))\n        coefficients = [_coefficients(own, limit, mask).to(dtype) for own in lengths]",
        "limit = self.clip.limit(len(groups)) * len(total)\n"
        "        lengths = [own.sum().expand_as(own).clone() for own in lengths]\n"
        "        coefficients = [_coefficients(own, limit, mask).to(dtype) for own in lengths]",
        (GRADIENTS + "removing_one_example_moves_the_sum_by_at_most_the_clip",),
    ),
    Mutant(
        "every layer with the whole clip norm",
        "training/clip.py",
        "share = self.clip_norm if is_whole else group_clip_norm(self.clip_norm, groups, self.norm)",
        "share = self.clip_norm",
        (CLIP + "each_layer_of_one_example_is_as_long_as_its_share",),
    ),
    Mutant(
        "an L1 clip by L2 norms",
        "training/clip.py",
        'if self.norm == "l1":\n            return torch.stack',
        "if False:\n            return torch.stack",
        (CLIP + "removing_one_example_moves_the_sum_by_at_most_the_clip_in_its_norm",),
    ),
    Mutant(
        "a norm without the bias",
        "training/rules/linear.py",
        'return found.mul_(torch.hypot(lengths(self.x), ONE if "bias" in self.names else UNDERFLOW))',
        "return found.mul_(torch.hypot(lengths(self.x), UNDERFLOW))",
        ("tests/training/rules/test_linear.py::test_norms_of_rank_one_neither_overflow_nor_lose_the_bias",),
    ),
    Mutant(
        "a norm without one of several uses",
        "training/shared.py",
        "x, g = (torch.cat(values, 1) for values in zip(*pairs, strict=True))\n    return replace(calls[0], x=x, gradient=g)",
        "return calls[0]",
        (GRADIENTS + "a_module_called_twice_is_added_before_the_norm",),
    ),
    Mutant(
        "a tied table as two that do not meet",
        "training/shared.py",
        "self.product.squares() + self.lookups.squares() + 2 * self._inner()",
        "self.product.squares() + self.lookups.squares()",
        (SHARED + "a_table_tied_to_the_output_layer",),
    ),
    Mutant(
        "an example that is not finite in the sum",
        "training/gradients.py",
        "        if all(own.sum().item() <= longest for own in lengths):\n",
        "        if lengths:\n",
        (GRADIENTS + "an_example_that_is_not_finite_counts_as_zero",),
    ),
    Mutant(
        "an example that is not finite in the sum of the slow way",
        "training/gradients.py",
        "        if not all(own.item() <= REACH * self.clip.clip_norm for own in lengths):\n            return {}, torch.tensor(torch.inf)\n",
        "",
        (GRADIENTS + "an_example_that_is_not_finite_counts_as_zero_on_the_slow_way",),
    ),
    Mutant(
        "the batch clipped on the slow way",
        "training/gradients.py",
        "            for number in range(forward.size) if mask is None else mask.nonzero().flatten().tolist():\n                own, norms[number] = self._alone(forward.rows([number]))\n",
        "            for number in range(1):\n                own, norms[number] = self._alone(forward)\n",
        (ZOO + "straight-through sign]",),
    ),
    Mutant(
        "a record that stops the step",
        "training/gradients.py",
        "                if not self._is_tried:\n                    raise\n",
        "                raise\n",
        (GRADIENTS + "a_record_on_which_the_pass_fails_counts_as_zero_and_stops_nobody",),
    ),
    Mutant(
        "a record that stops the slow way",
        "training/gradients.py",
        "        except Exception as error:\n            if not self._is_tried:\n",
        "        except Exception as error:\n            if True:\n",
        (PROGRAMS + "a_record_on_which_the_loss_fails_counts_as_zero",),
    ),
    Mutant(
        "a sum in float32 on the grid",
        "training/gradients.py",
        "        if self.is_exact:\n            dtype = torch.float64\n",
        "        if False:\n            dtype = torch.float64\n",
        (CLIP + "sums_have_the_parameters_precision_and_float64_where_they_are_exact",),
    ),
    Mutant(
        "rows moved by a flip",
        "training/operations.py",
        '    **ruled(along("dims"), "flip roll"),\n',
        '    **ruled(lambda operation: operation.marks.place(operation.own), "flip roll"),\n',
        (INDEPENDENCE + MOVES + "[flip]",),
    ),
    Mutant(
        "a product that differs by the place in the batch",
        "training/operations.py",
        "return place if operation.marks.is_alike(operation[right if place.axis else left], place) else None",
        "return place",
        ("tests/training/test_operations.py::test_what_a_rule_says_of_examples_is_so[addmm of a ramp]",),
    ),
    Mutant(
        "parameters of before in a twin",
        "training/twins.py",
        "            found = self._twin(owner, *arguments, **keywords)\n",
        "            self._twin._tie(owner)\n            self._twin._tie = lambda _: True\n"
        "            found = self._twin(owner, *arguments, **keywords)\n",
        ("tests/training/test_twins.py::test_parameters_that_were_put_in_place_later_are_used",),
    ),
    Mutant(
        "steps backwards that forget the step after",
        "training/cells.py",
        "            state = flat @ self.weights.hh\n        return Gradients(found, found, totals, state, cell)",
        "            state = 0 * (flat @ self.weights.hh)\n        return Gradients(found, found, totals, state, cell)",
        ("tests/training/test_recurrent.py::test_clipped_sums_are_those_of_torchs_layer",),
    ),
    Mutant(
        "a bias for the keys that no layer explains",
        "training/rules/expanded.py",
        "rows_of(call.pair[1])",
        "rows_of(0 * call.pair[1])",
        ("tests/training/test_attention.py::test_every_option_of_torchs_module_is_served",),
    ),
    Mutant(
        "rows moved by a sort",
        "training/operations.py",
        'cummin sort topk glu",\n    ),\n',
        'cummin topk glu",\n    ),\n    **ruled(lambda operation: operation.marks.place(operation.own), "sort"),\n',
        ("tests/training/test_operations.py::test_what_a_rule_says_of_examples_is_so",),
    ),
    Mutant(
        "rows moved by an index",
        "training/operations.py",
        "return FRONT if is_one_block and _counts(operation.marks, given[0], given[1:]) else None",
        "return FRONT if is_one_block else None",
        (INDEPENDENCE + MOVES + "[permuted]",),
    ),
    Mutant(
        "rows moved by index_select",
        "training/operations.py",
        'is_kept = place is not None and operation.axis() != place.axis and operation.is_clean("index")',
        "is_kept = place is not None",
        (INDEPENDENCE + MOVES + "[index_select]",),
    ),
    Mutant(
        "a softmax over examples",
        "training/operations.py",
        "return None if place is None or met is None or place.axis in met else place",
        "return None if place is None or met is None else place",
        (INDEPENDENCE + MOVES + "[softmax over the batch]",),
    ),
    Mutant(
        "constants that differ between rows",
        "training/marks.py",
        "if place.axis < 0 or tensor.shape[place.axis] == 1 or self.of(tensor) == NOISE:\n            return True",
        "if place is not None:\n            return True",
        (INDEPENDENCE + "constants_that_differ_by_the_place_in_the_batch_are_seen",),
    ),
    Mutant(
        "examples that decide what is computed",
        "training/independence.py",
        "watch.escaped = watch.escaped or operation.name",
        "watch.escaped = None",
        (INDEPENDENCE + "shapes_that_follow_from_numbers_are_seen",),
    ),
    Mutant(
        "numbers that leave torch's sight",
        "training/independence.py",
        "if function in _OUT_OF_SIGHT and",
        "if False and",
        (INDEPENDENCE + "a_hook_on_a_tensor_is_seen", INDEPENDENCE + "what_tells_python_of_the_examples_is_seen"),
    ),
    Mutant(
        "constants that depend on the number of examples",
        "training/independence.py",
        "return len(self.seen) == len(other.seen) and all(map(_agree, self.seen, other.seen))",
        "return True",
        (INDEPENDENCE + "two_passes_agree_unless_a_number_follows_from_their_size",),
    ),
    Mutant(
        "a custom gradient that is trusted",
        "training/attribution.py",
        "if any(issubclass(type(node), BackwardCFunction) and type(node) not in OURS for node in graph.numbers):",
        "if False:",
        ("tests/training/test_attribution.py::test_a_gradient_of_ones_own_is_not_trusted_with_rows",),
    ),
    Mutant(
        "a stashed tensor",
        "training/attribution.py",
        "if stashed := _stashed(claims, calls, graph, leaves):",
        "if stashed := None:",
        ("tests/training/test_attribution.py::test_a_tensor_that_a_module_keeps_for_the_loss_is_seen",),
    ),
    Mutant(
        "a use outside its layer",
        "training/attribution.py",
        "        if claimed[name] != count:\n",
        "        if False:\n",
        (GRADIENTS + "a_weight_used_as_a_function_besides_its_module_is_noticed",),
    ),
    Mutant(
        "an input that was changed in place",
        "training/capture.py",
        "return call.x is None or call.x._version == call.version",
        "return True",
        (
            "tests/training/test_traps.py::test_trap_02_an_activation_changed_in_place_after_its_use_is_an_error_where_autograd_needs_it",
        ),
    ),
    Mutant(
        "positions taken for examples",
        "training/programs.py",
        "if not all(look.placed[claim.number] for look in looks):",
        "if False:",
        (GRADIENTS + "positions_in_front_of_examples_are_no_examples",),
    ),
    Mutant(
        "a program that was not looked at",
        "training/programs.py",
        "                return _judged(way, looks, run.calls)",
        "                return way",
        (GRADIENTS + "positions_in_front_of_examples_are_no_examples",),
    ),
    Mutant(
        "one way for two losses, modes and shapes",
        "training/programs.py",
        "return self.setting, self.graph.form, self._calls(self.graph)",
        "return None, self.graph.form, self._calls(self.graph)",
        (PROGRAMS + "two_losses_with_one_graph_are_two_programs",),
    ),
    Mutant(
        "one look at a program",
        "training/programs.py",
        "return [every, most, few] if size > 1",
        "return [few, few, few] if size > 1",
        (PROGRAMS + "a_number_that_follows_from_the_batch_size_goes_the_slow_way",),
    ),
    Mutant(
        "losses that depend on other examples",
        "training/forward.py",
        "            if _is_scaled(first, second, weights):\n",
        "            if True:\n",
        (GRADIENTS + "one_loss_that_depends_on_one_other_example_is_refused_at_once",),
    ),
    Mutant(
        "batch normalisation",
        "training/compat.py",
        "for path, module in model.named_modules():\n",
        "for path, module in ():\n",
        (GRADIENTS + "batch_norm_is_refused_at_the_door",),
    ),
    # --- many models at once ---
    Mutant(
        "no clip in an ensemble",
        "training/segments.py",
        "coefficients = (limits / norms).clamp_(max=1.0).mul_(mask)",
        "coefficients = torch.ones_like(norms).mul_(mask)",
        (ENSEMBLE + "clipped_sums_are_those_of_one_example_at_a_time",),
    ),
    Mutant(
        "padding that counts",
        "training/segments.py",
        "coefficients = (limits / norms).clamp_(max=1.0).mul_(mask)",
        "coefficients = (limits / norms).clamp_(max=1.0)",
        (ENSEMBLE + "padding_may_hold_anything",),
    ),
    Mutant(
        "the neighbour's clip norm",
        "training/segments.py",
        "limits = clip_norms.double().unsqueeze(1) * (1 - TOLERANCE)",
        "limits = clip_norms.roll(1).double().unsqueeze(1) * (1 - TOLERANCE)",
        (ENSEMBLE + "one_example_moves_its_models_sum_by_the_clip_norm_and_no_other_by_a_bit",),
    ),
    Mutant(
        "next client's table",
        "training/ensemble.py",
        "return (arguments[0].clamp(0, table.num_embeddings - 1), *arguments[1:])",
        "return arguments",
        (ENSEMBLE + "a_token_beyond_the_table_is_not_looked_up_in_the_next_models_table",),
    ),
    Mutant(
        "gradients of the next client's table",
        "training/segments.py",
        "examples // size * height + piece.keys % height",
        "(examples // size + 1) % models * height + piece.keys % height",
        (ENSEMBLE + "one_example_moves_its_models_sum_by_the_clip_norm_and_no_other_by_a_bit",),
    ),
    Mutant(
        "a program of an ensemble that changes",
        "training/ensemble.py",
        "        if form not in self._forms:\n",
        "        if not self._forms:\n",
        (ENSEMBLE + "a_program_that_changes_is_looked_at_again",),
    ),
    Mutant(
        "an ensemble whose program was not looked at",
        "training/ensemble.py",
        "    if way.why is not None:\n        raise Unsupported(way.why)\n",
        "",
        (ENSEMBLE + "a_model_that_moves_rows_is_trained_one_after_the_other",),
    ),
    Mutant(
        "one model's noise for another",
        "training/many.py",
        "            for name, value in noise.add({name: value[places] for name, value in sums.items()}, std).items():\n"
        "                noisy[name][places] = value\n",
        "            for name, value in noise.add({name: value[:1] * 0 for name, value in sums.items()}, std).items():\n"
        "                noisy[name][places] = sums[name][places] + value\n",
        (MANY + "no_model_has_the_noise_of_another",),
    ),
    Mutant(
        "what Python decides is not compared",
        "training/programs.py",
        "self._calls(self.graph), self.asked\n",
        "self._calls(self.graph)\n",
        (PROGRAMS + "what_python_decides_out_of_torchs_sight_moves_the_sum_by_at_most_the_clip[by a counter]",),
    ),
    Mutant(
        "calls without their whole numbers",
        "training/calls.py",
        'asked.append(("batch", times) if times > 0 and not rest else value)',
        "asked.append(None)",
        (PROGRAMS + "what_python_decides_out_of_torchs_sight_moves_the_sum_by_at_most_the_clip[by which axis]",),
    ),
    Mutant(
        "calls without their tensors",
        "training/calls.py",
        "self._sources.append(None if value.requires_grad else self._source(value))",
        "pass",
        ("tests/training/test_calls.py::test_other_calls_numbers_or_tensors_are_told_apart",),
    ),
    Mutant(
        "an error that a model catches",
        "training/independence.py",
        "                watch.escaped = watch.escaped or type(error).__name__\n",
        "                pass\n",
        (INDEPENDENCE + "an_error_that_a_pass_may_catch_is_seen",),
    ),
    Mutant(
        "memory of examples under another name",
        "training/marks.py",
        "mark = MIXED if _address(tensor) in self._memory else NONE",
        "mark = NONE",
        (PROGRAMS + "memory_of_examples_is_theirs_under_any_name",),
    ),
    Mutant(
        "random numbers by a seed of the model's own",
        "training/independence.py",
        "    if watch.is_repeatable(operation):\n",
        "    if False:\n",
        (PROGRAMS + "numbers_by_a_seed_of_the_models_own_are_no_noise",),
    ),
    Mutant(
        "only sizes that were drawn are looked at",
        "training/programs.py",
        "most = (every * 2)[: 2 ** size.bit_length() - 1]",
        "most = every",
        (PROGRAMS + "what_is_the_same_for_few_rows_and_not_for_more_is_looked_at_with_more",),
    ),
    Mutant(
        "no look with other parameters",
        "training/programs.py",
        "                    looks.append(self._watched(few))\n",
        "                    pass\n",
        (
            PROGRAMS
            + "what_python_decides_out_of_torchs_sight_moves_the_sum_by_at_most_the_clip[by a table that learns]",
        ),
    ),
    Mutant(
        "noise of the first model's plan for all",
        "training/many.py",
        "places[stds[plan]].append(place)",
        "places[stds[plans[0]]].append(place)",
        (MANY + "every_model_has_noise_of_its_own_plan_also_when_nobody_is_drawn",),
    ),
    Mutant(
        "no noise where nobody was drawn",
        "training/many.py",
        "            noisy = noise.add(sums)\n",
        "            noisy = noise.add(sums) if table.rows.shape[1] else sums\n",
        (MANY + "every_model_has_noise_of_its_own_plan_also_when_nobody_is_drawn",),
    ),
    Mutant(
        "realised batch as divisor of many models",
        "training/many.py",
        "batches = torch.tensor([plan.batch_size for plan in self._plans])\n",
        "batches = torch.tensor([max(size * plan.batch_size // plan.size, 1) for size, plan in zip(self._sizes, self._plans)])\n",
        (MANY + "one_record_moves_the_mean_of_a_step_by_the_clip_norm_over_the_batch_size",),
    ),
    Mutant(
        "the same records for every model",
        "training/draws.py",
        "owners = np.repeat(np.arange(len(sizes)), sizes)\n    throws",
        "owners = np.repeat(np.arange(len(sizes)), sizes)\n    sources = sources[:1] * len(sources)\n    throws",
        ("tests/training/test_draws.py::test_seeded_samples_are_those_of_the_sampler_for_one_model",),
    ),
)
