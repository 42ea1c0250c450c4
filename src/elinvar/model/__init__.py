"""The network: its forward pass, sampling, and the exchange with other formats."""
