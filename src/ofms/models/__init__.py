"""The dictionary of models: architectures, files, costs, pre-training."""
