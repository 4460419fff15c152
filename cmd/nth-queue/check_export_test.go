package main

// Run is the whole program but for its exit.
var Run = service().Run
