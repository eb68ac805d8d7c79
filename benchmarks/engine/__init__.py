"""What the engine costs on a CPU, beside a plain torch forward of the same model in the same run."""
