// The container command is what runs in the containers of a node: it serves until it is told to end, obeys as its
// arguments say, and writes down what happened to it, so that a test can read it when the machine is off.
//
//	container                         # pauses, which is what holds a pod together
//	container -words FILE -ends 3s    # serves, and ends 3 s after SIGTERM; "never" waits to be killed
package main

import (
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// aliveEvery is how often a container that was told to end writes that it has not ended.
const aliveEvery = 50 * time.Millisecond

func main() {
	words := flag.String("words", "", "the file to write to; none makes this a pause")
	ends := flag.String("ends", "0s", `how long after SIGTERM it ends, or "never"`)
	flag.Parse()
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGTERM, syscall.SIGINT)
	if *words == "" {
		<-told
		return
	}
	if err := serve(*words, *ends, told); err != nil {
		fmt.Fprintln(os.Stderr, "container:", err)
		os.Exit(1)
	}
}

// serve answers requests until it is told to end, and then for as long as it takes to.
func serve(words, ends string, told <-chan os.Signal) error {
	file, err := os.OpenFile(words, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer file.Close()
	say := func(word string) { fmt.Fprintf(file, "%s %s\n", time.Now().Format(time.RFC3339Nano), word) }

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	say("serves " + listener.Addr().String())
	go func() {
		// It ends with the program.
		_ = http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") }))
	}()

	say((<-told).String())
	var over <-chan time.Time
	if ends != "never" {
		after, err := time.ParseDuration(ends)
		if err != nil {
			return err
		}
		over = time.After(after)
	}
	for alive := time.NewTicker(aliveEvery); ; {
		select {
		case <-alive.C:
			say("alive")
		case <-over:
			say("ended")
			return nil
		}
	}
}
