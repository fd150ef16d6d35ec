"""The real thing: a server and its devices over a network, on Flower, with the policies that the simulator runs."""
