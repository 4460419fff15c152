package main // want godoclint

func main() {}
