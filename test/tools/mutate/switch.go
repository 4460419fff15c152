package mutate

// What the rewritten package knows by these names is told to it in the environment.
const (
	mutantVariable  = "NTH_MUTANT"          // the mutant to be
	reachedVariable = "NTH_MUTANTS_REACHED" // the file to note reached mutants in
)

// switchFile is what the package is given in addition, and switchImports what that imports.
const switchFile = "mutant_switch.go"

var switchImports = []string{"cmp", "os", "strconv", "sync/atomic", "syscall", "time"}

// switchText is the file without its package clause. Its functions are called all over the package, by many goroutines
// at once and within synctest's bubbles: they hold no lock, wait for nothing and cost a comparison. A mutant may fill
// the machine's memory, so it gets a bounded address space.
const switchText = `

import (
	mutantcmp "cmp"
	mutantos "os"
	mutantstrconv "strconv"
	mutantatomic "sync/atomic"
	mutantsyscall "syscall"
	mutanttime "time"
)

type mutantInt interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~uintptr
}

type mutantNumber interface{ mutantInt | ~float32 | ~float64 }

type mutantDuration = mutanttime.Duration

var mutantActive = func() int {
	id, err := mutantstrconv.Atoi(mutantos.Getenv("NTH_MUTANT"))
	if err != nil {
		return -1
	}
	const space = 4 << 30
	_ = mutantsyscall.Setrlimit(mutantsyscall.RLIMIT_AS, &mutantsyscall.Rlimit{Cur: space, Max: space})
	return id
}()

var mutantNotes = func() *mutantos.File {
	name := mutantos.Getenv("NTH_MUTANTS_REACHED")
	if name == "" {
		return nil
	}
	notes, err := mutantos.OpenFile(name, mutantos.O_APPEND|mutantos.O_WRONLY, 0)
	if err != nil {
		panic(err)
	}
	return notes
}()

var mutantNoted [mutantCount]mutantatomic.Bool

func mutantOn(id int) bool {
	if mutantNotes != nil && mutantNoted[id].CompareAndSwap(false, true) {
		_, _ = mutantNotes.WriteString(mutantstrconv.Itoa(id) + "\n")
	}
	return id == mutantActive
}

func mutantLess[T mutantcmp.Ordered](id int, a, b T) bool {
	if mutantOn(id) {
		return a <= b
	}
	return a < b
}

func mutantAtMost[T mutantcmp.Ordered](id int, a, b T) bool {
	if mutantOn(id) {
		return a < b
	}
	return a <= b
}

func mutantMore[T mutantcmp.Ordered](id int, a, b T) bool {
	if mutantOn(id) {
		return a >= b
	}
	return a > b
}

func mutantAtLeast[T mutantcmp.Ordered](id int, a, b T) bool {
	if mutantOn(id) {
		return a > b
	}
	return a >= b
}

func mutantPlus[T mutantNumber](id int, a, b T) T {
	if mutantOn(id) {
		return a - b
	}
	return a + b
}

func mutantMinus[T mutantNumber](id int, a, b T) T {
	if mutantOn(id) {
		return a + b
	}
	return a - b
}

func mutantTimes[T mutantNumber](id int, a, b T) T {
	if mutantOn(id) {
		return a / b
	}
	return a * b
}

func mutantBy[T mutantNumber](id int, a, b T) T {
	if mutantOn(id) {
		return a * b
	}
	return a / b
}

func mutantRest[T mutantInt](id int, a, b T) T {
	if mutantOn(id) {
		return a * b
	}
	return a % b
}

// mutantSign is for x += y, which is told x only for its type.
func mutantSign[T mutantNumber](id int, _, y T) T {
	if mutantOn(id) {
		return -y
	}
	return y
}

func mutantNext[T mutantNumber](id int, v T) T {
	if mutantOn(id) {
		return v + 1
	}
	return v
}

func mutantLonger(id int, v mutantDuration) mutantDuration {
	if mutantOn(id) {
		return 2 * v
	}
	return v
}

func mutantNil(id int, err error) error {
	if mutantOn(id) {
		return nil
	}
	return err
}
`
