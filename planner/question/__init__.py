"""What a user wrote, read into a problem in SI units: one dataclass a block, validated once."""
