package main

// PolicyOf gives the rules that follow from settings.
var PolicyOf = policyOf
