"""The planners that were published with PipeDream and with PipeDream-2BW."""
