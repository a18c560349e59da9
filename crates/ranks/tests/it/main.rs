//! Collectives over the memory of one process, against the reference over all ranks.

mod carry;
