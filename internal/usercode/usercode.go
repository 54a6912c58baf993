// Package usercode calls functions of the program that uses the library, on goroutines of the
// library. A panic there would end the program, and runtime.Goexit would silently end the goroutine.
package usercode

import (
	"fmt"
	"runtime"
	"strings"
)

// A Failure is the error of a function that panicked or ended its goroutine. It does not have the value of the
// panic, which can contain data that must not be logged.
type Failure struct {
	Type  string // of the value of the panic; "" if the function called runtime.Goexit
	Stack string
}

func (f *Failure) Error() string {
	if f.Type == "" {
		return "the function ended its goroutine (runtime.Goexit)"
	}
	return "the function panicked (" + f.Type + ")"
}

// Of returns the Failure for the result of recover. The deferred function that has called recover
// calls it.
func Of(v any) *Failure {
	f := &Failure{Stack: stack()}
	if v != nil { // panic(nil) has the value *runtime.PanicNilError
		f.Type = fmt.Sprintf("%T", v)
	}
	return f
}

// As returns the Failure that Guard or Call has returned, or nil. It calls no method of err, which
// can be an error of the program.
func As(err error) *Failure {
	f, _ := err.(*Failure)
	return f
}

// Guard calls f and sets *err to its error, or to the Failure. If f ends the goroutine, Guard does
// not return: the caller continues in deferred functions.
func Guard(err *error, f func() error) {
	returned := false
	defer func() {
		if !returned {
			*err = Of(recover())
		}
	}()
	*err = f()
	returned = true
}

// Call calls f on a goroutine of its own and returns its error, or the Failure.
func Call(f func() error) (err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		Guard(&err, f)
	}()
	<-done
	return err
}

// stack returns the functions of the present goroutine with their positions. Unlike the text of
// package debug it has no arguments, which can be data of the program.
func stack() string {
	pcs := make([]uintptr, 64)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs)])
	var text strings.Builder
	for {
		f, more := frames.Next()
		fmt.Fprintf(&text, "%s\n\t%s:%d\n", f.Function, f.File, f.Line)
		if !more {
			return text.String()
		}
	}
}
