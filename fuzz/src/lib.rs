//! What fuzz targets do with their input; the tests of the library run the same with made-up input.
pub mod exercise;
pub mod handshake;
pub mod packed_index;
