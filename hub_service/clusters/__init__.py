"""Where workloads really run: this machine, Kubernetes or a simulation, behind one contract."""
