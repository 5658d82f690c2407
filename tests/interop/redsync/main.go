// A redsync mutex in a process of its own: PORT NAME. See ../python_peer.py for what it is told and answers.
package main

import (
	"bufio"
	"fmt"
	"os"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

func main() {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + os.Args[1]})
	locks := redsync.New(goredis.NewPool(client))
	mutex := locks.NewMutex(os.Args[2], redsync.WithExpiry(20*time.Second), redsync.WithTries(1000))
	fmt.Println("ready")
	for input := bufio.NewScanner(os.Stdin); input.Scan(); {
		switch input.Text() {
		case "try":
			if mutex.TryLock() == nil {
				fmt.Println("held")
			} else {
				fmt.Println("refused")
			}
		case "wait":
			fmt.Println("waiting")
			if err := mutex.Lock(); err != nil {
				fmt.Println(err)
			} else {
				fmt.Println("held")
			}
		case "release":
			if ok, err := mutex.Unlock(); !ok {
				fmt.Println("not released:", err)
			} else {
				fmt.Println("released")
			}
		}
	}
}
