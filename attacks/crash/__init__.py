"""Writers of a trace that are killed, or whose disk fails, at every call to the file system.

Every record whose `write` had returned must be read back, with its bytes; nothing else may appear
but the one that was being written. What is tried is the death of a process, not of the machine:
what was written is there for whoever reads next, since the kernel has it. Nothing is synced to the
disk, which would slow training down, so a power loss may take what the kernel still held.
"""
