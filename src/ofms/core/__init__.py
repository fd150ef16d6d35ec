"""Mathematics and messages of online federated model selection: NumPy alone, vectorised over clients."""
