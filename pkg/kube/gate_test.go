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
		"the first before others, the urgent on places of their own": func(t *testing.T) {
			gate := kube.NewGate(1)
			leave := <-apitest.Enter(t, gate, false, kube.InTurn)
			later, cordon := apitest.Enter(t, gate, false, kube.InTurn), apitest.Enter(t, gate, false, kube.First)
			if spot := apitest.Enter(t, gate, true, kube.InTurn); len(spot) != 1 || len(later)+len(cordon) != 0 {
				t.Errorf("of the urgent %d have entered, of the others %d", len(spot), len(later)+len(cordon))
			}
			leave()
			leave()
			if synctest.Wait(); len(cordon) != 1 || len(later) != 0 {
				t.Errorf("after one has left, %d of the first and %d of the others have entered", len(cordon), len(later))
			}
			(<-cordon)()
			(<-later)()
			(<-apitest.Enter(t, gate, false, kube.InTurn))() // The place is free again.
		},
		// A webhook may not answer.
		"a request keeps its place for two seconds at most": func(t *testing.T) {
			gate := kube.NewGate(1)
			leave := <-apitest.Enter(t, gate, false, kube.InTurn)
			began := time.Now()
			(<-apitest.Enter(t, gate, false, kube.InTurn))()
			if waited := time.Since(began); waited != 2*time.Second {
				t.Errorf("the next one has waited %s", waited)
			}
			leave()
			if given := apitest.Enter(t, gate, false, kube.InTurn); len(given) != 1 {
				t.Error("there is no place once all have left")
			}
			if more := apitest.Enter(t, gate, false, kube.InTurn); len(more) != 0 {
				t.Error("a place that was given up is given up once more")
			}
		},
		"what becomes urgent waits behind no other": func(t *testing.T) {
			gate := kube.NewGate(1)
			for range 100 {
				go func() {
					if leave, err := gate.Enter(t.Context(), nil, false); err == nil {
						time.AfterFunc(time.Minute, leave)
					}
				}()
			}
			synctest.Wait()
			began := time.Now()
			leave, err := gate.Enter(t.Context(), func() bool { return time.Since(began) > 2*time.Second }, false)
			if took := time.Since(began); err != nil || took != 3*time.Second { // It looks each second whether it is.
				t.Errorf("it has entered after %s: %v", took, err)
			}
			leave()
			(<-apitest.Enter(t, gate, false, kube.InTurn))() // The place is free again.
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
				leave := <-apitest.Enter(t, gate, false, kube.InTurn)
				entered, failed := make(chan int, 3), make(chan error, 1)
				var giveUp context.CancelFunc
				for i := range 3 {
					ctx, cancel := context.WithCancel(t.Context())
					if i == c.gone {
						giveUp = cancel
					}
					go func() {
						defer cancel()
						leave, err := gate.Enter(ctx, nil, i == c.first)
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
				(<-apitest.Enter(t, gate, false, kube.InTurn))() // The place is free again.
			})
		})
	}
}
