package recipetest

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/internal/coordtest"
)

type strictOrder struct {
	Number int
	Lines  []struct{ Name string }
	Note   *string
}

// What JSON reads as a nearly empty value, StrictJSON refuses, and the error shows no data.
func TestCodec_StrictJSONRefusesOtherTypes(t *testing.T) {
	strict, lax := coord.StrictJSON[strictOrder](), coord.JSON[strictOrder]()
	for _, data := range []string{
		`{"Number":1,"secret":2}`, `{"Number":1,"Lines":[{"Name":"x","secret":1}]}`, `{"secret":{}}`, `null`, ` null `,
	} {
		if _, err := strict.Decode([]byte(data)); err == nil {
			t.Errorf("StrictJSON reads %s", data)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("the error shows data: %v", err)
		}
		if _, err := lax.Decode([]byte(data)); err != nil {
			t.Errorf("JSON refuses %s: %v", data, err)
		}
	}
	for _, data := range []string{
		``, ` `, `{`, `{"Number":1`, `{"Number":1} {"Number":2}`, `{"Number":1}}`, `{"Number":1} secret`, `[]`, `1`, `"secret"`, `{"Number":"secret"}`, `{"Number":1.5}`,
	} {
		if _, err := strict.Decode([]byte(data)); err == nil {
			t.Errorf("StrictJSON reads %s", data)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("the error shows data: %v", err)
		}
	}
	for _, data := range []string{`{}`, ` {"Number":1} `, "{\"number\":1,\"Note\":null,\"Lines\":null}\n"} {
		a, err := strict.Decode([]byte(data))
		b, err2 := lax.Decode([]byte(data))
		if err != nil || err2 != nil || !reflect.DeepEqual(a, b) {
			t.Errorf("%s: %+v, %v, but JSON has %+v, %v", data, a, err, b, err2)
		}
	}
	note := "n"
	want := strictOrder{Number: 7, Lines: []struct{ Name string }{{"a"}}, Note: &note}
	data, err := strict.Encode(want)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := strict.Decode(data); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := coord.StrictJSON[int]().Decode([]byte("null")); err == nil {
		t.Error("null is an int")
	}
	for name, err := range map[string]error{
		"pointer": second(coord.StrictJSON[*int]().Decode([]byte("null"))), "map": second(coord.StrictJSON[map[string]int]().Decode([]byte("null"))),
		"any": second(coord.StrictJSON[any]().Decode([]byte("null"))), "raw": second(coord.StrictJSON[json.RawMessage]().Decode([]byte("null"))),
	} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// With StrictJSON an older version of a program does not erase what it does not know.
func TestCodec_StrictJSONKeepsAnUpdateFromErasingFields(t *testing.T) {
	type older struct{ Rate int }
	type newer struct{ Rate, Burst int }
	onMemory(t, func(w *world) {
		ctx := context.Background()
		c := w.Open("a", nil)
		v2 := coord.NewValue[newer](c, "/v", nil)
		if _, err := v2.Set(ctx, newer{1, 2}); err != nil {
			w.T.Fatal(err)
		}
		strict := coord.NewValue(c, "/v", &coord.ValueOptions[older]{Codec: coord.StrictJSON[older]()})
		_, err := strict.Update(ctx, func(v older) (older, error) { v.Rate++; return v, nil })
		coordtest.WantErr(w.T, err, coord.ErrDecode)
		if got, err := v2.Get(ctx); err != nil || got.Value != (newer{1, 2}) {
			w.T.Errorf("%+v, %v", got.Value, err)
		}
	})
}

// The nodes of a Counter and of a Value that holds a whole number are alike, and the error says so.
func TestKindError_NamesValuesOfNumbers(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		c := w.Open("a", nil)
		if _, err := coord.NewValue[int](c, "/v", nil).Set(ctx, 17); err != nil {
			w.T.Fatal(err)
		}
		_, err := coord.NewMutex(c, "/v", nil).TryLock(ctx)
		var kind *coord.KindError
		if !errors.As(err, &kind) || !strings.Contains(err.Error(), `"value"`) || !strings.Contains(err.Error(), `"counter"`) {
			w.T.Errorf("%v", err)
		}
	})
}
