"""The KV transport and its send scheduling, measured beside what else there is."""
