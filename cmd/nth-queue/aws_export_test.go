package main

// RegionOf is regionOf.
var RegionOf = regionOf
