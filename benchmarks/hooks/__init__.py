"""The training hooks beside what people save their runs with: stall, throughput, memory, return."""
