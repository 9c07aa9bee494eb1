"""Write-behind: checkpoints on the disk of their own node, and their way to the destination."""
