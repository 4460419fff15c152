// Program does what only a program may.
package main

import (
	"context"
	"fmt"
	"os"
)

func main() {
	fmt.Println(context.Background())
	if len(os.Args) > 1 {
		panic("no") // want forbidigo
	}
	os.Exit(1)
}
