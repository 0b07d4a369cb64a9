//! The tests of the control socket.

mod clients;
mod place;
mod verbs;
mod world;
