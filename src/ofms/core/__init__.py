"""Mathematics and messages of online federated model selection: NumPy only, vectorised over clients."""
