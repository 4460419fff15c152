// The container command is what runs in the containers of a node: it serves until SIGTERM, obeys as its
// arguments say, and writes down what happened to it, so that a test can read it when the machine is off.
//
//	container                         # pauses, which is what holds a pod together
//	container -pause 3s               # pauses for that long, which is what getting ready takes
//	container -words FILE -ends 3s    # serves, and ends 3 s after SIGTERM; "never" waits to be killed
//
// A request may say how long its answer takes: GET /?takes=2s. What it has begun to answer it finishes before it ends.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// aliveEvery is how often a container that got SIGTERM writes that it has not ended.
const aliveEvery = 50 * time.Millisecond

func main() {
	words := flag.String("words", "", "the file to write to; none makes this a pause")
	ends := flag.String("ends", "0s", `how long after SIGTERM it ends, or "never"`)
	pause := flag.Duration("pause", 0, "how long the pause is; without end if this is 0")
	flag.Parse()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	if *words == "" {
		wait(*pause, signals)
		return
	}
	if err := serve(*words, *ends, signals); err != nil {
		fmt.Fprintln(os.Stderr, "container:", err)
		os.Exit(1)
	}
}

func wait(pause time.Duration, signals <-chan os.Signal) {
	var over <-chan time.Time
	if pause > 0 {
		over = time.After(pause)
	}
	select {
	case <-signals:
	case <-over:
	}
}

// serve answers requests until SIGTERM, and then for as long as it takes to.
func serve(words, ends string, signals <-chan os.Signal) error {
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
	server := &http.Server{Handler: http.HandlerFunc(answer)}
	say("serves " + listener.Addr().String())
	go func() { _ = server.Serve(listener) }() // It ends with the program.

	say((<-signals).String())
	var over <-chan time.Time
	if ends != "never" {
		after, err := time.ParseDuration(ends)
		if err != nil {
			return err
		}
		over = time.After(after)
	}
	idle := make(chan error)
	for alive := time.NewTicker(aliveEvery); ; {
		select {
		case <-alive.C:
			say("alive")
		case <-over:
			go func() { idle <- server.Shutdown(context.Background()) }()
		case err := <-idle:
			say("ended")
			return err
		}
	}
}

// answer says that all is well, after as long as the request wants that to take.
func answer(w http.ResponseWriter, r *http.Request) {
	if takes, err := time.ParseDuration(r.URL.Query().Get("takes")); err == nil {
		time.Sleep(takes)
	}
	fmt.Fprintln(w, "ok")
}
