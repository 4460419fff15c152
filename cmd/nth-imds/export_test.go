package main

// Main is the program, for a test that is a process of it.
var Main = main
