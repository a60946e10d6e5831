"""Classes of unequal size: what is done about them in training, in pseudo-labels and when predicting.

Pure functions and small running means, each with its source. Imports the rest of `common.learning`; trainers,
objectives and strategies import it. `prevalence` needs numpy alone, so that `semisilo predict` need not load torch.
"""
