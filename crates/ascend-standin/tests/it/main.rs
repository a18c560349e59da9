//! Tests of the Ascend device's host side over the stand-in for CANN's libraries, one executable.

mod capture;
mod common;
mod compile;
mod device;
mod faults;
mod ladder;
mod program;
mod survey;
mod vendor;
