"""What is exported: a checkpoint or a model, its tokens and its inputs."""
