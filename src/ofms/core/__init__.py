"""The mathematics of online federated model selection, in NumPy alone and vectorised over clients."""
