// Runs something under a lock of a latchfs server, with Go's own library.
// usage: LATCHFS_SERVER=http://box:8080 go run lock.go NAME CLIENT
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

type lock struct{ url, client string }

type answer struct {
	Token  int64  `json:"token"`
	Detail string `json:"detail"`
}

func (l lock) ask(method string, token int64, options url.Values) (int64, error) {
	options.Set("client", l.client)
	request, err := http.NewRequest(method, l.url, strings.NewReader(options.Encode()))
	if err != nil {
		return 0, err
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if token != 0 {
		request.Header.Set("If-Match", fmt.Sprintf("%q", fmt.Sprint(token)))
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	var said answer
	if err := json.NewDecoder(response.Body).Decode(&said); err != nil {
		return 0, err
	}
	if response.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("%s: %s", response.Status, said.Detail)
	}
	return said.Token, nil
}

// with holds the lock, and renews it, while work runs; the context ends when it is lost.
func (l lock) with(ttl, wait time.Duration, work func(context.Context, int64) error) error {
	token, err := l.ask("POST", 0, url.Values{"ttl": {ttl.String()}, "wait": {wait.String()}})
	if err != nil {
		return err
	}
	ctx, lost := context.WithCancel(context.Background())
	defer lost()
	go func() {
		// A third of the ttl leaves time for two more attempts.
		ticks := time.NewTicker(ttl / 3)
		defer ticks.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticks.C:
				if _, err := l.ask("PATCH", token, url.Values{}); err != nil {
					log.Print(err)
					lost()
				}
			}
		}
	}()
	worked := work(ctx, token)
	if _, err := l.ask("DELETE", token, url.Values{}); err != nil && worked == nil {
		return err
	}
	return worked
}

func main() {
	server := os.Getenv("LATCHFS_SERVER")
	if server == "" {
		server = "http://127.0.0.1:8080"
	}
	held := lock{server + "/locks/" + url.PathEscape(os.Args[1]), os.Args[2]}
	err := held.with(30*time.Second, 30*time.Second, func(_ context.Context, token int64) error {
		fmt.Println("mine, token", token)
		// The work goes here; give the token to what it changes, so that it can refuse older ones.
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("released")
}
