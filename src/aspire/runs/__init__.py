"""What a run leaves behind: its log, its checkpoints and its folder."""
