//! Tests of the importer, one executable; fuzzing is an executable of its own.

mod bind;
mod complex;
mod conversions;
mod given;
mod goldens;
mod hostile_archives;
mod masked;
mod mutations;
mod scale;
mod support;
mod weights;
