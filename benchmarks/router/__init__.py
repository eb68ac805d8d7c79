"""What the router costs: added time to first token, requests/s and tokens/s of one core, retokenisation."""
