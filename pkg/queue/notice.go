package queue

import (
	"fmt"

	"github.com/nth-project/nth/pkg/event"
)

// Notice is what a message says of one instance.
type Notice struct {
	About Subject
	// Instance is the EC2 instance's ID. It is empty where the message names only a Reservation.
	Instance string
	// Reservation is the ID of the capacity reservation whose instances are meant, all of them.
	Reservation string
	// Event is what is announced, for an Interruption. What comes out of a queue and does not tell when it was noticed has
	// the time at which it was put there.
	Event event.Event
	// Hook is the lifecycle hook at which Auto Scaling waits for an answer; nil if it does not.
	Hook *Hook
	// Stopped tells that EC2 says the instance is not running any more.
	Stopped bool
}

// Subject says what a notice is about.
type Subject string

// The subjects of notices.
const (
	// Interruption: the instance is going to be taken away, or is already.
	Interruption Subject = "interruption"
	// Launch: the instance is new, and its group waits at a hook before it counts as in service.
	Launch Subject = "launch"
	// Running: the instance has been started.
	Running Subject = "running"
)

// Hook names one action of a lifecycle hook.
type Hook struct {
	Group, Name, Token string
	// Launch tells that it waits until the instance may go into service, and Back that the instance goes back to a warm pool, not to
	// its end.
	Launch, Back bool
}

// NotOursError says why nobody here needs a message: it may be deleted.
type NotOursError struct{ Why string }

func (e NotOursError) Error() string { return e.Why }

// PoisonError says why a message cannot be understood: whoever filled the queue should know, and it is left for the
// dead-letter queue.
type PoisonError struct{ Why string }

func (e PoisonError) Error() string { return e.Why }

func notOurs(format string, args ...any) error { return NotOursError{fmt.Sprintf(format, args...)} }
func poison(format string, args ...any) error  { return PoisonError{fmt.Sprintf(format, args...)} }
