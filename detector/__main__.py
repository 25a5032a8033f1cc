from detector.cli import main

main()
