package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"
)

// help is the help text.
func help() string {
	var b strings.Builder
	b.WriteString(`nth-imds simulates EC2's instance metadata service (IMDSv2), to rehearse an interruption on any machine.

Usage: nth-imds [--listen 127.0.0.1:1338]     in one terminal
       nth-imds trigger spot --in 2m          in another

`)
	for _, c := range commands() {
		fmt.Fprintf(&b, "  %-15s%s\n", c.name, c.summary)
	}
	b.WriteString(`
"nth-imds help COMMAND" tells more about each. All but serve take --server URL, or the environment's NTH_IMDS,
for a simulator elsewhere than http://127.0.0.1:1338.

Exit statuses: 0 success, 64 usage error, 1 any other failure
`)
	return b.String()
}

const serveUsage = `Usage: nth-imds [serve] [--listen ADDRESS] [--life-cycle spot|on-demand] [--verbose]

Serves the metadata of a healthy instance, as EC2 would, until it gets SIGTERM or SIGINT. Prints the address and each
change. Everything that is announced stays until it is withdrawn, even when its time has come.

  --listen ADDRESS   where to listen; port 0 chooses a free one (default 127.0.0.1:1338)
  --life-cycle WORD  how the instance was bought: spot or on-demand (default spot)
  --verbose          print each request too
`

const triggerUsage = `Usage: nth-imds trigger spot         [--in 2m] [--action terminate|stop|hibernate]
       nth-imds trigger rebalance
       nth-imds trigger maintenance  --code CODE [--in 1h] [--for 2h] [--state STATE] [--id ID]
       nth-imds trigger lifecycle    STATE

Announces what EC2 announces. Several announcements can stand at once; maintenance adds to what is scheduled.

  --in DURATION     how long after the announcement EC2 acts: the notice carries that time
                    (default 2m for spot, 1h for maintenance)
  --action ACTION   what EC2 does to the spot instance (default terminate)
  --code CODE       instance-reboot, system-reboot, system-maintenance, instance-retirement or instance-stop
  --for DURATION    how long the maintenance takes (default 2h)
  --state STATE     active, canceled or completed; the last two also enter the history (default active)
  --id ID           the event's ID; one that is scheduled is changed, and keeps what is not given (default: made up)
  STATE             Detached, InService, Standby, Terminated, Warmed:Hibernated, Warmed:Running, Warmed:Stopped
                    or Warmed:Terminated: the state Auto Scaling brings the instance into
  --after DURATION  wait so long before announcing it
  --server URL      the simulator (default $NTH_IMDS, else http://127.0.0.1:1338)
`

const withdrawUsage = `Usage: nth-imds withdraw spot|rebalance|lifecycle|all
       nth-imds withdraw maintenance [--id ID] [--no-history]

Takes back what was announced. Maintenance leaves the schedule and enters the history as canceled, as on EC2. "all"
also drops changes that still wait for their --after.

  --id ID           one maintenance event (default all)
  --no-history      let it just disappear
  --after DURATION  wait so long before withdrawing it
  --server URL      the simulator (default $NTH_IMDS, else http://127.0.0.1:1338)
`

const faultUsage = `Usage: nth-imds fault KIND [--path PATH] [--for DURATION] [--times N]

Breaks the service until "nth-imds lift". Several faults can be in force; a request meets the one set last.

  reset             begin an answer, then reset the connection
  hang              accept requests and answer them only once lifted
  slow              send the right answer byte by byte (--over DURATION, default 30s)
  500, 503, ...     answer with this status
  401               refuse every token, though new ones are handed out
  garbage           answer 200 with random bytes
  oversized         answer 200 with 1 GiB
  token-down        answer only requests for tokens with an error (--status N, default 500);
                    for a token endpoint that hangs: hang --path /latest/api/token
  refuse            close the port; needs --for, because nobody could lift it

  --path PATH       only what lies below PATH, such as /latest/meta-data/spot
  --for DURATION    lift it after so long
  --times N         break only the next N requests
  --after DURATION  wait so long before breaking it
  --server URL      the simulator (default $NTH_IMDS, else http://127.0.0.1:1338)
`

const liftUsage = `Usage: nth-imds lift [--after DURATION]

Lifts all faults. Requests that hang are answered.

  --after DURATION  wait so long before lifting them
  --server URL      the simulator (default $NTH_IMDS, else http://127.0.0.1:1338)
`

const expireUsage = `Usage: nth-imds expire-tokens [--after DURATION]

Makes all tokens invalid that were handed out: requests with them get 401. New ones are handed out.

  --after DURATION  wait so long before
  --server URL      the simulator (default $NTH_IMDS, else http://127.0.0.1:1338)
`

const showUsage = `Usage: nth-imds show [--json]

Tells what is announced, which changes wait, which faults are in force, and what was asked for how often.

  --json            as JSON
  --server URL      the simulator (default $NTH_IMDS, else http://127.0.0.1:1338)
`

// usageError is an invalid command line.
type usageError struct{ text string }

func (e usageError) Error() string { return e.text }

// helpRequest is the error of a command line that asks for help.
type helpRequest struct{ text string }

func (helpRequest) Error() string { return "help is wanted" }

// flags is a FlagSet that prints nothing itself, and accepts flags between and after other arguments, which are called words.
type flags struct {
	*flag.FlagSet
	usage string
}

func newFlags(name, usage string) flags {
	set := flag.NewFlagSet(name, flag.ContinueOnError)
	set.SetOutput(io.Discard)
	return flags{set, usage}
}

// duration defines a flag for a non-negative duration.
func (f flags) duration(d *time.Duration, name string) {
	f.Func(name, "", func(text string) error {
		parsed, err := time.ParseDuration(text)
		if err != nil || parsed < 0 {
			return errors.New("want a duration such as 90s or 2m")
		}
		*d = parsed
		return nil
	})
}

// parse returns the words among args, of which there must be one for each name.
func (f flags) parse(args []string, names ...string) ([]string, error) {
	var words []string
	for {
		err := f.Parse(args)
		switch {
		case errors.Is(err, flag.ErrHelp):
			return nil, helpRequest{f.usage}
		case err != nil:
			return nil, usageError{fmt.Sprintf("%s: %v", f.Name(), err)}
		case f.NArg() == 0:
			return f.checked(words, names)
		}
		words = append(words, f.Arg(0))
		args = f.Args()[1:]
	}
}

func (f flags) checked(words, names []string) ([]string, error) {
	switch {
	case len(words) < len(names):
		return nil, usageError{fmt.Sprintf("%s: %s is missing, see \"nth-imds help %s\"", f.Name(), names[len(words)], f.command())}
	case len(words) > len(names):
		return nil, usageError{fmt.Sprintf("%s: %q is one word too many, see \"nth-imds help %s\"", f.Name(), words[len(names)], f.command())}
	}
	return words, nil
}

func (f flags) command() string {
	first, _, _ := strings.Cut(f.Name(), " ")
	return first
}
