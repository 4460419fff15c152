package role

import (
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// Pause is how long to wait after that many failures in a row before AWS is asked again: first after one, and twice as long
// after each further, up to longest; of that, a random part between the half and the whole, so that a fleet whose requests
// failed together does not ask together again.
func Pause(failures int, first, longest time.Duration) time.Duration {
	steps := min(max(failures, 1), 64) // By then it does not grow any more.
	backoff := wait.Backoff{Duration: first / 2, Cap: longest / 2, Factor: 2, Jitter: 1, Steps: steps}
	var pause time.Duration
	for range steps {
		pause = backoff.Step()
	}
	return pause
}

// Spread is an interval of about so long, a tenth more or less, for what is asked all the time.
func Spread(interval time.Duration) time.Duration {
	return wait.Jitter(interval*9/10, 2.0/9)
}
