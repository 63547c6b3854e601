"""The system around a process: terminal and notebook, signals, processors, installed packages."""
