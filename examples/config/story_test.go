package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/examples/internal/service"
)

// program follows the configuration. The channels report its steps to the story.
type program struct {
	name    string
	link    service.Link
	applied chan Config
	refused chan error
}

// story runs two programs and an operator. In production each runs in a process of its own.
func story(ctx context.Context, s *service.Service) error {
	following, stop := context.WithCancel(ctx)
	var programs [2]program
	ended := make(chan error, len(programs))
	started := 0
	defer func() {
		stop()
		for range started {
			<-ended
		}
	}()
	for i := range programs {
		p := &programs[i]
		*p = program{name: fmt.Sprint("app-", i+1), applied: make(chan Config, 16), refused: make(chan error, 16)}
		c, link, err := s.Open(ctx, p.name)
		if err != nil {
			return err
		}
		p.link = link
		v := coord.NewValue[Config](c, "/config", nil)
		started++
		go func() {
			ended <- follow(following, v, func(c Config) { p.applied <- c }, func(err error) { p.refused <- err })
		}()
	}
	a, b := &programs[0], &programs[1]

	c, _, err := s.Open(ctx, "operator")
	if err != nil {
		return err
	}
	config := coord.NewValue[Config](c, "/config", nil)
	for _, p := range programs {
		if err := p.refuses(ctx, s, coord.ErrNotFound); err != nil { // there is none yet
			return err
		}
	}

	first := Config{Level: "info", Workers: 4}
	s.Say("operator", "sets %+v", first)
	if _, err := config.Set(ctx, first); err != nil {
		return err
	}
	if err := errors.Join(a.applies(ctx, s, first), b.applies(ctx, s, first)); err != nil {
		return err
	}

	s.Say("operator", "writes an invalid configuration by hand")
	byHand := coord.NewValue(c, "/config", &coord.ValueOptions[string]{Codec: coord.Text()})
	if _, err := byHand.Set(ctx, "workers = many"); err != nil {
		return err
	}
	if err := errors.Join(a.refuses(ctx, s, coord.ErrDecode), b.refuses(ctx, s, coord.ErrDecode)); err != nil {
		return err
	}

	s.Say(b.name, "loses contact")
	b.link.Partition()
	second := Config{Level: "debug", Workers: 8}
	s.Say("operator", "sets %+v", second)
	if _, err := config.Set(ctx, second); err != nil {
		return err
	}
	if err := a.applies(ctx, s, second); err != nil {
		return err
	}
	// Update is for changes that depend on the present value: no concurrent change is lost.
	third, err := config.Update(ctx, func(old Config) (Config, error) {
		old.Workers++
		return old, nil
	})
	if err != nil {
		return err
	}
	s.Say("operator", "adds a worker: %+v", third.Value)
	if err := a.applies(ctx, s, third.Value); err != nil {
		return err
	}
	if len(b.applied) > 0 {
		return fmt.Errorf("%s applies a configuration without contact: %+v", b.name, <-b.applied)
	}
	s.Say(b.name, "has contact again")
	b.link.Heal()
	// It never sees the second configuration: a watch delivers the latest value.
	return b.applies(ctx, s, third.Value)
}

// applies waits until the program applies a configuration, which must be want.
func (p *program) applies(ctx context.Context, s *service.Service, want Config) error {
	select {
	case got := <-p.applied:
		if got != want {
			return fmt.Errorf("%s applies %+v, want %+v", p.name, got, want)
		}
		s.Say(p.name, "applies %+v", got)
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s does not apply %+v: %w", p.name, want, context.Cause(ctx))
	}
}

// refuses waits until the program refuses a configuration, which must be for that reason.
func (p *program) refuses(ctx context.Context, s *service.Service, want error) error {
	select {
	case err := <-p.refused:
		if !errors.Is(err, want) {
			return fmt.Errorf("%s refuses a configuration: %w", p.name, err)
		}
		s.Say(p.name, "keeps its configuration: %v", err)
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s does not notice: %w", p.name, context.Cause(ctx))
	}
}
