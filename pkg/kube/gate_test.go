package kube_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/kube"
)

func TestGate(t *testing.T) {
	for name, test := range map[string]func(*testing.T){
		"by precedence": func(t *testing.T) {
			gate := kube.NewGate(1)
			leave := <-apitest.Enter(t, gate, kube.Urgent)
			report, later := apitest.Enter(t, gate, kube.Last), apitest.Enter(t, gate, kube.InTurn)
			cordon, spot := apitest.Enter(t, gate, kube.First), apitest.Enter(t, gate, kube.Urgent)
			leave()
			leave()
			for i, next := range []<-chan func(){spot, cordon, later, report} {
				if synctest.Wait(); len(next) != 1 {
					t.Fatalf("number %d has not entered", i)
				}
				(<-next)()
			}
			(<-apitest.Enter(t, gate, kube.InTurn))() // The place is free again.
		},
		// A webhook may not answer.
		"a request keeps its place for two seconds at most": func(t *testing.T) {
			gate := kube.NewGate(1)
			leave := <-apitest.Enter(t, gate, kube.InTurn)
			began := time.Now()
			(<-apitest.Enter(t, gate, kube.InTurn))()
			if waited := time.Since(began); waited != 2*time.Second {
				t.Errorf("the next one has waited %s", waited)
			}
			leave()
			if given := apitest.Enter(t, gate, kube.InTurn); len(given) != 1 {
				t.Error("there is no place once all have left")
			}
			if more := apitest.Enter(t, gate, kube.InTurn); len(more) != 0 {
				t.Error("a place that was given up is given up once more")
			}
		},
	} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
	}
}

// Of three who wait, one has not had a place.
func TestGate_WhoGivesUp(t *testing.T) {
	for name, c := range map[string]struct {
		first, gone int // who comes before the others, and who gives up
		order       []int
	}{
		"who was next":   {0, 0, []int{1, 2}},
		"who was second": {0, 1, []int{0, 2}},
		"who was last":   {0, 2, []int{0, 1}},
		"who was next after one that comes first": {1, 0, []int{1, 2}},
		"who comes first":                         {2, 2, []int{0, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				gate := kube.NewGate(1)
				leave := <-apitest.Enter(t, gate, kube.InTurn)
				entered, failed := make(chan int, 3), make(chan error, 1)
				var giveUp context.CancelFunc
				for i := range 3 {
					ctx, cancel := context.WithCancel(t.Context())
					if i == c.gone {
						giveUp = cancel
					}
					go func() {
						defer cancel()
						precedence := kube.InTurn
						if i == c.first {
							precedence = kube.First
						}
						leave, err := gate.Enter(ctx, precedence)
						if err != nil {
							failed <- err
							return
						}
						entered <- i
						leave()
					}()
					synctest.Wait()
				}
				giveUp()
				if err := <-failed; !errors.Is(err, context.Canceled) {
					t.Errorf("the error is %v", err)
				}
				if synctest.Wait(); len(entered) > 0 {
					t.Fatalf("%d has entered as another one gave up, and the only place is taken", <-entered)
				}
				leave()
				for _, want := range c.order {
					if next := <-entered; next != want {
						t.Errorf("%d came, want %v", next, c.order)
					}
				}
				(<-apitest.Enter(t, gate, kube.InTurn))() // The place is free again.
			})
		})
	}
}
