"""Other programs' names of our settings, so that a key from there is answered with ours.

>>> explain_unknown_key("max_grad_norm", ["epsilon", "clip_norm"])
"is not a key; dpfed's word is clip_norm"
>>> explain_unknown_key("roundz", ["rounds", "name"])
'is not a key; did you mean rounds?'
>>> explain_unknown_key("secure_mode", ["rounds"])
'is not needed: noise always comes from a cryptographic source; leave it out'
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches

# Ours first; the words of Opacus, Flower, TensorFlow Privacy, pfl-research, APPFL and the papers after it.
_THEIRS = {
    "clip_norm": "max_grad_norm max_grad_norm_sample l2_norm_clip clipping_norm clipping_bound clipping_threshold "
    "max_norm clip clip_value grad_clip gradient_clip clip_threshold c",
    "privacy.client.clip_norm": "max_grad_norm_user user_clip client_clip update_clip_norm",
    "epsilon": "target_epsilon eps target_eps privacy_budget max_epsilon epsilon_budget total_epsilon budget",
    "delta": "target_delta max_delta",
    "noise_multiplier": "noise_scale sigma noise_sigma z noise_std noise_level cohort_noise_scale "
    "noise_multiplier_sample",
    "privacy.client.noise_multiplier": "noise_multiplier_user server_noise_multiplier",
    "rounds": "num_rounds num_server_rounds n_rounds global_rounds global_epochs communication_rounds comm_rounds "
    "central_num_iterations server_rounds num_iterations",
    "cohort: {kind: poisson, rate: …}": "fraction_fit fraction_train client_fraction client_sampling_rate frac "
    "sample_rate sampling_rate participation_rate sample_rate_user fraction_evaluate participation",
    "cohort: {kind: fixed, size: …}": "cohort_size clients_per_round num_sampled_clients num_clients_per_round "
    "min_fit_clients min_train_nodes min_available_clients min_available_nodes",
    "local.learning_rate": "lr local_lr local_learning_rate client_lr client_learning_rate eta learningrate step_size",
    "algorithm.server_learning_rate": "server_lr global_lr eta_s server_step_size central_lr",
    "local.epochs": "local_epochs num_epochs local_num_epochs num_local_epochs client_epochs",
    "local.steps": "local_steps num_steps num_local_steps local_num_steps steps_per_round local_iterations "
    "max_steps steps_sample",
    "local.batch_size": "local_batch_size train_batch_size batchsize batch expected_batch_size lot_size bs b",
    "local.optimizer": "optim local_optimizer client_optimizer optim_args",
    "local.schedule": "scheduler lr_scheduler lr_schedule noise_scheduler",
    "local.weight_decay": "wd l2 l2_regularization",
    "proximal": "mu proximal_mu prox_mu proximal_term",
    "rho": "penalty init_penalty admm_penalty",
    "beta1": "beta_1 b1 betas",
    "beta2": "beta_2 b2",
    "tau": "adaptivity_degree",
    "algorithm.kind": "strategy fl_algorithm",
    "aggregation.kind": "aggregator aggregation_method aggregation_rule robust_aggregation",
    "max_faulty": "num_byzantine byzantine_clients num_malicious_nodes num_malicious_clients nb_byz",
    "attack_sim": "attack attacks attack_simulation",
    "data.source": "dataset data_path dataset_name dataset_path path file train_data",
    "data.partition": "partitioner partitioning split distribution heterogeneity",
    "data.partition.clients": "num_clients n_clients num_partitions number_of_clients num_supernodes num_parties",
    "alpha": "dirichlet_alpha concentration",
    "data.label": "target label_column target_column y",
    "data.partition: {kind: column, column: …}": "site site_column site_col hospital_column client_column group_column",
    "data.person_column": "person_id patient_column patient_id subject_column subject_id user_column user_id "
    "patient subject",
    "data.rows_per_person": "max_rows_per_person rows_per_user max_examples_per_user max_contributions",
    "data.sizes": "dataset_size num_examples sample_size dataset_sizes num_samples n",
    "data.test_fraction": "test_size val_fraction validation_split test_split test_ratio",
    "data.feature_bounds": "ranges feature_range normalize normalise",
    "bounds: {release: [COLUMN], epsilon: …}": "standardize standardise private_bounds",
    "model.kind": "architecture arch net model_name",
    "model.init": "pretrained weights checkpoint initial_weights",
    "privacy.style": "dp_mode privacy_mode dp_type privacy_type dp_level privacy_unit mode",
    "privacy": "dp differential_privacy dp_config privacy_config",
    "privacy.record": "sample sample_level record_level local_dp",
    "privacy.person": "person_level patient_level subject_level",
    "privacy.client": "user user_level client_level central_dp",
    "epsilon_per_round": "epsilon_per_iteration per_round_epsilon per_iteration_epsilon eps_per_round epsilon_bar",
    "adaptive": "adaptive_clipping adaptive_clip quantile_clipping",
    "tree": "dp_ftrl ftrl tree_aggregation tree_noise correlated_noise",
    "quantile": "target_unclipped_quantile target_quantile",
    "count_noise": "clipped_count_stddev count_stddev count_noise_stddev",
    "name": "run_name experiment_name run run_id",
    "track": "tracking tracker logger mlflow tensorboard",
    "runner": "backend executor simulator",
    "seed": "random_seed random_state rng_seed",
    "minimum_cohort": "min_cohort min_cohort_size min_clients",
    "max_participations": "max_participation max_rounds_per_client",
}

_NEEDLESS = {
    "poisson_sampling": "records are sampled by Poisson draws unless privacy.record has a tree, and are accounted so",
    "secure_mode": "noise always comes from a cryptographic source",
    "secure_rng": "noise always comes from a cryptographic source",
    "accountant": "the accountant is exact",
    "mechanism": "the accountant is exact",
    "alphas": "the accountant is exact and chooses its own orders",
    "adjacency": "it follows from the style, data.sizes and the cohort",
    "num_workers": "it does not change the run",
    "device": "it does not change the run",
    "version": "the file has no version",
}


_OURS = {word: ours for ours, words in _THEIRS.items() for word in words.split()}


def find_our_word(key: str) -> str | None:
    """Return dpfed's key for another program's, without the blocks above it; None where there is none."""
    ours = _OURS.get(_normal(key))
    return None if ours is None else ours.split(":")[0].split(".")[-1]


def explain_unknown_key(key: str, here: Sequence[str], elsewhere: Mapping[str, Iterable[str]] | None = None) -> str:
    """Return what is wrong with an unknown key, as a text that continues a sentence which begins with the key.

    `here` are the keys of its block, `elsewhere` the full paths of each key of the whole file.
    """
    word = _normal(key)
    if word in here:
        return f"is not a key; write it {word}"
    ours = _OURS.get(word)
    if ours is not None and not set(ours.split(".")[-1:]) <= set(here):
        places = list((elsewhere or {}).get(ours, ()))
        return f"is not a key; dpfed's word is {' or '.join(places) or ours}"
    if ours is not None:
        return f"is not a key; dpfed's word is {ours.split('.')[-1]}"
    if word in _NEEDLESS:
        return f"is not needed: {_NEEDLESS[word]}; leave it out"
    places = list((elsewhere or {}).get(word, ()))
    near = get_close_matches(word, here, n=1, cutoff=0.85 if places else 0.6)
    if near:
        return f"is not a key; did you mean {near[0]}?"
    if places:
        return f"is not a key here; it belongs at {' or '.join(places)}"
    return f"is not a key; there are {', '.join(here)}"


def _normal(key: str) -> str:
    return key.strip().lower().replace("-", "_")
