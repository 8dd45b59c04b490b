"""What everything else stands on: errors, console, processes, files, downloads."""
